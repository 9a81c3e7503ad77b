"""What a user says about OpenAI: model, endpoint, account, parameters."""

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt, field_validator, model_validator

from batchor_core.providers.config import EnqueueLimitConfig, HostedProviderConfig, checked_params

OWNED_PARAMS = frozenset(
    {
        "dimensions",
        "encoding_format",
        "input",
        "instructions",
        "max_completion_tokens",
        "max_output_tokens",
        "messages",
        "model",
        "n",
        "response_format",
        "stream",
        "text",
    }
)
"""Body fields that the job or another field here decides; ``params`` may not name them."""

EMBEDDING_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
"""Length of the vectors of OpenAI's own models (OpenAI's model pages)."""


class OpenAIEnqueueLimitConfig(EnqueueLimitConfig):
    """How much may be enqueued for one model of one organisation at once."""


class OpenAIProviderConfig(HostedProviderConfig):
    """An OpenAI model behind the Batch API, or one of any host that speaks its protocol.

    Without ``api_key`` the SDK reads ``OPENAI_API_KEY``, without ``base_url`` ``OPENAI_BASE_URL``.

    Attributes:
        model: As ``gpt-4.1-mini``; on Azure the name of a Global-Batch deployment.
        endpoint: ``responses`` (``/v1/responses``), ``chat`` (``/v1/chat/completions``) or
            ``embeddings`` (``/v1/embeddings``).
        organization: Else the SDK reads ``OPENAI_ORG_ID``.
        project: Else the SDK reads ``OPENAI_PROJECT_ID``.
        params: Further fields of each request's body, as ``{"temperature": 0}``.
        max_output_tokens: Upper bound of an answer, reasoning included; also what is reserved.
        dimensions: Length of embedding vectors; default: the model's own, where known.
        api_version: Azure's ``api-version``, for resources that are not on its ``/openai/v1``.
            ``base_url`` is then the resource's own, as ``https://name.openai.azure.com``, and the
            key comes from ``api_key`` or ``AZURE_OPENAI_API_KEY``.
    """

    provider: Literal["openai"] = "openai"
    endpoint: Literal["responses", "chat", "embeddings"] = "responses"
    organization: str | None = None
    project: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    max_output_tokens: PositiveInt | None = None
    dimensions: PositiveInt | None = None
    api_version: str | None = Field(default=None, min_length=1)

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
        fields = {"params": self.params, "max_output_tokens": self.max_output_tokens}
        return fields | ({"dimensions": self.dimensions} if self.dimensions else {})

    @property
    def embedding_dimensions(self) -> int | None:
        """Length of the vectors that are asked for."""
        if self.endpoint != "embeddings":
            return None
        return self.dimensions or EMBEDDING_DIMENSIONS.get(self.model)

    @field_validator("params")
    @classmethod
    def _check_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        return checked_params(params, OWNED_PARAMS, "model, max_output_tokens, dimensions")

    @model_validator(mode="after")
    def _check_azure(self) -> Self:
        if self.api_version is None:
            return self
        if self.organization is not None or self.project is not None:
            raise ValueError("organization, project: Azure has none, leave them out")
        if self.base_url is None:
            raise ValueError(
                "base_url: needed beside api_version, as https://name.openai.azure.com"
            )
        if "openai" in urlsplit(self.base_url).path.split("/"):
            raise ValueError(
                "base_url: give the resource alone beside api_version, as "
                "https://name.openai.azure.com; its /openai/v1 takes no api_version"
            )
        return self

    @model_validator(mode="after")
    def _check_embeddings(self) -> Self:
        if self.endpoint != "embeddings":
            if self.dimensions is not None:
                raise ValueError("dimensions: only embeddings have any")
            return self
        if self.max_output_tokens is not None:
            raise ValueError("max_output_tokens: embeddings have no output tokens")
        if self.embedding_dimensions is None:
            raise ValueError(
                f"dimensions: the length of {self.model!r}'s vectors is not known here; give it"
            )
        return self
