"""What a user says about Gemini: model, backend, account, parameters."""

import os
import re
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from batchor_core.providers.config import HostedProviderConfig, checked_params

OWNED_PARAMS = frozenset(
    {
        "maxOutputTokens",
        "max_output_tokens",
        "responseJsonSchema",
        "responseMimeType",
        "responseSchema",
        "response_json_schema",
        "response_mime_type",
        "response_schema",
    }
)
"""Fields of ``generationConfig`` that the job or another field here decides."""

_MODEL = re.compile(r"[A-Za-z0-9][\w.@-]*(/[A-Za-z0-9][\w.@-]*)*")

EMBEDDING_DIMENSIONS = {"gemini-embedding-001": 3072, "text-embedding-005": 768}
"""Length of the vectors of Google's own models (Google's model pages)."""


class GeminiProviderConfig(HostedProviderConfig):
    """A Gemini model behind batch mode, on the Developer API or on Vertex AI.

    Without ``api_key`` the SDK reads ``GOOGLE_API_KEY``, then ``GEMINI_API_KEY``; Vertex AI takes
    Application Default Credentials instead.

    Attributes:
        model: As ``gemini-2.5-flash``; ``models/`` in front of it is left out.
        endpoint: ``generate`` (``generateContent``) or ``embeddings`` (``embedContent``).
        backend: ``developer``, ``vertex``, or ``auto``: Vertex where
            ``GOOGLE_GENAI_USE_VERTEXAI`` (or ``GOOGLE_GENAI_USE_ENTERPRISE``, which wins) says so.
        input_mode: On the Developer API: a ``file`` of requests, requests ``inline`` in the
            create call, or ``auto``: a file for embeddings, and where they are more than a few MB.
        generation_config: Fields of each request's ``generationConfig``, in REST spelling, as
            ``{"temperature": 0}``.
        request_params: Further fields of each request beside it, as ``{"safetySettings": [...]}``.
        max_output_tokens: Upper bound of an answer, thinking included.
        schema_dialect: How output schemas are sent: ``responseSchema``, or
            ``responseJsonSchema``, which takes more but has given broken JSON in batch mode
            (facts: providers, 0.12).
        dimensions: Length of embedding vectors; default: the model's own, where known.
        task_type: What embeddings are for, as ``RETRIEVAL_DOCUMENT``.
        project: Vertex: the Google Cloud project; else ``GOOGLE_CLOUD_PROJECT``.
        location: Vertex: the region; else ``GOOGLE_CLOUD_LOCATION``.
        gcs_uri: Vertex: a ``gs://bucket/folder`` under which requests and answers are staged.
        api_version: Of the API; default: the SDK's own.
    """

    provider: Literal["gemini"] = "gemini"
    endpoint: Literal["generate", "embeddings"] = "generate"
    backend: Literal["auto", "developer", "vertex"] = "auto"
    input_mode: Literal["auto", "inline", "file"] = "auto"
    generation_config: dict[str, Any] = Field(default_factory=dict)
    request_params: dict[str, Any] = Field(default_factory=dict)
    max_output_tokens: PositiveInt | None = None
    schema_dialect: Literal["responseSchema", "responseJsonSchema"] = "responseSchema"
    dimensions: PositiveInt | None = None
    task_type: str | None = None
    project: str | None = None
    location: str | None = None
    gcs_uri: str | None = Field(default=None, pattern=r"^gs://[^/*?\[\]#]+(/[^*?\[\]#]*)?$")
    api_version: str | None = None

    @property
    def is_vertex(self) -> bool:
        """Whether requests go to Vertex AI."""
        if self.backend != "auto":
            return self.backend == "vertex"
        names = ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI")
        said = next((os.environ[name] for name in names if name in os.environ), "")
        return said.lower() in ("1", "true")

    @property
    def endpoint_name(self) -> str:
        """Which endpoint is asked."""
        return self.endpoint

    @property
    def output_token_bound(self) -> int | None:
        """The most output tokens that one request can cost."""
        return 0 if self.endpoint == "embeddings" else self.max_output_tokens

    @property
    def answer_fields(self) -> dict[str, Any]:
        """All fields that change an answer."""
        return {
            "generation_config": self.generation_config,
            "request_params": self.request_params,
            "max_output_tokens": self.max_output_tokens,
            "schema_dialect": self.schema_dialect,
            "dimensions": self.dimensions,
            "task_type": self.task_type,
        }

    @property
    def embedding_dimensions(self) -> int | None:
        """Length of the vectors that are asked for."""
        if self.endpoint != "embeddings":
            return None
        return self.dimensions or EMBEDDING_DIMENSIONS.get(self.model)

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str) -> str:
        short = model.removeprefix("publishers/google/").removeprefix("models/")
        if not _MODEL.fullmatch(short):
            raise ValueError("give a model's name, as gemini-2.5-flash")
        return short

    @field_validator("generation_config")
    @classmethod
    def _check_generation_config(cls, params: dict[str, Any]) -> dict[str, Any]:
        return checked_params(params, OWNED_PARAMS, "max_output_tokens, schema_dialect")

    @field_validator("request_params")
    @classmethod
    def _check_request_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        owned = {
            "contents",
            "content",
            "generationConfig",
            "generation_config",
            "labels",
            "model",
            "systemInstruction",
            "system_instruction",
        }
        return checked_params(params, owned, "model, generation_config")

    @model_validator(mode="after")
    def _check_embeddings(self) -> Self:
        if self.endpoint != "embeddings":
            if self.dimensions is not None or self.task_type is not None:
                raise ValueError("dimensions, task_type: only embeddings have any")
            return self
        if self.max_output_tokens is not None or self.generation_config:
            raise ValueError("max_output_tokens, generation_config: embeddings have none")
        if self.embedding_dimensions is None:
            raise ValueError(
                f"dimensions: the length of {self.model!r}'s vectors is not known here; give it"
            )
        return self
