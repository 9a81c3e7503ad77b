"""What a user says about OpenAI: model, endpoint, account, parameters."""

import json
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, field_validator

from batchor_core.providers.config import ProviderConfigModel

OWNED_PARAMS = frozenset(
    {"input", "instructions", "max_output_tokens", "messages", "model", "stream", "text"}
)
"""Body fields that the job or another field here decides; ``params`` may not name them."""


class OpenAIEnqueueLimitConfig(ProviderConfigModel):
    """How much may be enqueued for one model of one organisation at once.

    Attributes:
        max_tokens: Enqueued input tokens; see the limits page of the account.
        max_requests: Enqueued requests.
        max_batches: Provider batches at work.
    """

    max_tokens: PositiveInt | None = None
    max_requests: PositiveInt | None = None
    max_batches: PositiveInt | None = None


class OpenAIProviderConfig(ProviderConfigModel):
    """An OpenAI model behind the Batch API.

    Attributes:
        model: As ``gpt-4.1-mini``.
        endpoint: ``responses`` (``/v1/responses``).
        api_key: Else the SDK reads ``OPENAI_API_KEY``. Never stored.
        base_url: Else the SDK reads ``OPENAI_BASE_URL``; any host that speaks the protocol.
        organization: Else the SDK reads ``OPENAI_ORG_ID``.
        project: Else the SDK reads ``OPENAI_PROJECT_ID``.
        params: Further fields of each request's body, as ``{"temperature": 0}``.
        max_output_tokens: Upper bound of an answer, reasoning included; also what is reserved.
        enqueue_limit: Limits of the account's queue, shared by all runs of ``quota_scope``.
        quota_scope: Runs that share the queue's limits; default: host, organisation, project
            and model.
        credentials: A name by which the program that drives the run finds the key again (in
            Dagster the resource's key). Stored; this library gives it no meaning.
        timeout_s: Time-out of one call other than creating a batch, in seconds.
    """

    provider: Literal["openai"] = "openai"
    model: str = Field(min_length=1)
    endpoint: Literal["responses"] = "responses"
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    max_output_tokens: PositiveInt | None = None
    enqueue_limit: OpenAIEnqueueLimitConfig = OpenAIEnqueueLimitConfig()
    quota_scope: str | None = None
    credentials: str | None = None
    timeout_s: PositiveFloat = 120.0

    @field_validator("params")
    @classmethod
    def _check_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        owned = sorted(OWNED_PARAMS & params.keys())
        if owned:
            raise ValueError(
                f"{', '.join(owned)}: set by the job itself (prompt, system prompt, output model) "
                "or by a field of its own (model, max_output_tokens)"
            )
        try:
            json.dumps(params, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                "not JSON: give texts, finite numbers, booleans, null, lists and mappings only"
            ) from None
        return params

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, base_url: str | None) -> str | None:
        if base_url is None:
            return None
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give an absolute URL, as https://host/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "the URL is stored: it may hold no credentials and no query; use api_key"
            )
        return base_url
