"""What a user says about OpenAI: model, endpoint, account, parameters."""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
)

OWNED_PARAMS = frozenset({"input", "instructions", "messages", "model", "stream", "text"})
"""Body fields that the job itself decides; a user's ``params`` may not name them."""


class OpenAIEnqueueLimitConfig(BaseModel):
    """How much may be enqueued for one model of one organisation at once.

    Attributes:
        max_tokens: Enqueued input tokens; see the limits page of the account.
        max_requests: Enqueued requests.
        max_batches: Provider batches at work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: PositiveInt | None = None
    max_requests: PositiveInt | None = None
    max_batches: PositiveInt | None = None


class OpenAIProviderConfig(BaseModel):
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
        timeout_s: Time-out of one call other than creating a batch, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    timeout_s: PositiveFloat = 120.0

    @field_validator("params")
    @classmethod
    def _refuse_owned_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        owned = sorted(OWNED_PARAMS & params.keys())
        if owned:
            raise ValueError(
                f"{', '.join(owned)}: set by the job itself (prompt, system prompt, output model)"
            )
        return params
