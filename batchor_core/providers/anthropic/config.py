"""What a user says about Anthropic: model, account, parameters."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from batchor_core.providers.config import HostedProviderConfig, checked_params

OWNED_PARAMS = frozenset({"max_tokens", "messages", "model", "output_config", "stream", "system"})
"""Fields of ``params`` that the job or another field here decides."""

SAMPLING_PARAMS = frozenset({"temperature", "top_p", "top_k"})
SAMPLING_API_VERSION = "2023-06-01"
"""The API version that takes them; the one that the SDK names by itself (2026-10-21) refuses
them, in a batch only when the request is executed (facts: providers, 0.6)."""
SAMPLING_ADVICE = (
    f'leave it out, or give AnthropicProviderConfig api_version="{SAMPLING_API_VERSION}"'
)


class AnthropicProviderConfig(HostedProviderConfig):
    """An Anthropic model behind the Message Batches API.

    Without ``api_key`` the SDK reads ``ANTHROPIC_API_KEY``, without ``base_url``
    ``ANTHROPIC_BASE_URL``.

    Attributes:
        model: As ``claude-sonnet-4-5``.
        max_tokens: Upper bound of an answer, thinking included; Anthropic wants one.
        message_params: Further fields of each request, as ``{"thinking": {...}}``.
        api_version: The ``anthropic-version`` header; default: the SDK's own. For ``temperature``,
            ``top_p`` or ``top_k`` it has to be ``2023-06-01``: later versions refuse them, and say
            so only for each request when it is executed, so that every row would fail.
        effort: ``output_config.effort``.
        prompt_cache: How long the system prompt and the examples before the prompt stay cached;
            hits within a batch are likely, not certain, and ``1h`` serves batches better.
        workspace: The ``anthropic-workspace-id`` header.
    """

    provider: Literal["anthropic"] = "anthropic"
    endpoint: Literal["messages"] = "messages"
    max_tokens: PositiveInt
    message_params: dict[str, Any] = Field(default_factory=dict)
    api_version: str | None = Field(
        default=None, pattern=r"^\d{4}-\d{2}-\d{2}$", validate_default=True
    )
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    prompt_cache: Literal["5m", "1h"] | None = None
    workspace: str | None = None

    @property
    def endpoint_name(self) -> str:
        """Which endpoint is asked."""
        return self.endpoint

    @property
    def output_token_bound(self) -> int | None:
        """The most output tokens that one request can cost."""
        return self.max_tokens

    @property
    def cache_write_factor(self) -> float | None:
        """Twice the input price for an hour (Anthropic's pricing page); else as is known."""
        return 2.0 if self.prompt_cache == "1h" else None

    @property
    def answer_fields(self) -> dict[str, Any]:
        """All fields that change an answer."""
        return {
            "max_tokens": self.max_tokens,
            "message_params": self.message_params,
            "api_version": self.api_version,
            "effort": self.effort,
        }

    @field_validator("message_params")
    @classmethod
    def _check_params(cls, params: dict[str, Any]) -> dict[str, Any]:
        return checked_params(params, OWNED_PARAMS, "model, max_tokens, effort")

    @field_validator("api_version")
    @classmethod
    def _check_sampling(cls, api_version: str | None, fields: ValidationInfo) -> str | None:
        check_sampling(fields.data.get("message_params", {}), api_version)
        return api_version


def check_sampling(params: Mapping[str, Any], api_version: str | None) -> None:
    """Make sure that the API version takes a request's parameters.

    Raises:
        ValueError: It refuses one of them, which would show only after the batch ended.
    """
    given = sorted(SAMPLING_PARAMS & params.keys())
    if given and api_version != SAMPLING_API_VERSION:
        raise ValueError(f"{', '.join(given)}: refused by this API version; {SAMPLING_ADVICE}")
