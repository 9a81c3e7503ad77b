"""The model that a command line names: whose, which, and how it is asked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from batchor_core.cli.options import gathered
from batchor_core.providers.anthropic.config import AnthropicProviderConfig
from batchor_core.providers.config import EnqueueLimitConfig
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.registry import ProviderConfig

_COUNT = click.IntRange(min=1)

_ENDPOINTS = {
    "openai": ("responses", "chat", "embeddings"),
    "anthropic": ("messages",),
    "gemini": ("generate", "embeddings"),
}
"""Of each provider; the first is the usual one."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which model is asked, and how."""

    model: str
    provider: str
    endpoint: str | None
    base_url: str | None
    api_version: str | None
    params: Mapping[str, Any]
    dimensions: int | None
    enqueued_token_limit: int | None
    anthropic_max_tokens: int | None
    anthropic_message_params: Mapping[str, Any]
    anthropic_prompt_cache: str | None
    gemini_backend: str | None
    gemini_input_mode: str | None
    gemini_generation_config: Mapping[str, Any]
    gcs_uri: str | None
    google_cloud_project: str | None
    google_cloud_location: str | None

    def __post_init__(self) -> None:
        endpoints = _ENDPOINTS[self.provider]
        if self.endpoint is not None and self.endpoint not in endpoints:
            raise click.UsageError(
                f"--provider {self.provider} has no --endpoint {self.endpoint}, but "
                f"{', '.join(endpoints)}."
            )
        foreign = {
            "--anthropic-max-tokens": self.anthropic_max_tokens,
            "--anthropic-message-params": self.anthropic_message_params,
            "--anthropic-prompt-cache": self.anthropic_prompt_cache,
            "--gemini-generation-config": self.gemini_generation_config,
            "--gemini-backend": self.gemini_backend,
            "--gemini-input-mode": self.gemini_input_mode,
            "--gcs-uri": self.gcs_uri,
            "--google-cloud-project": self.google_cloud_project,
            "--google-cloud-location": self.google_cloud_location,
        }
        for option, value in foreign.items():
            owner = "anthropic" if "anthropic" in option else "gemini"
            if value and self.provider != owner:
                raise click.UsageError(f"{option} is for --provider {owner}.")
        if self.dimensions is not None and self.provider == "anthropic":
            raise click.UsageError("Anthropic makes no embeddings: --dimensions is for others.")

    def config(self) -> ProviderConfig:
        """Return the provider's configuration.

        Raises:
            ConfigurationError: A value in it cannot work.
        """
        if self.provider == "anthropic":
            return self._anthropic()
        return self._gemini() if self.provider == "gemini" else self._openai()

    def _account(self) -> dict[str, Any]:
        """Return what all providers' configurations are told."""
        return {
            "model": self.model,
            "base_url": self.base_url,
            "api_version": self.api_version,
            "endpoint": self.endpoint or _ENDPOINTS[self.provider][0],
            "enqueue_limit": EnqueueLimitConfig(max_tokens=self.enqueued_token_limit),
        }

    def _openai(self) -> OpenAIProviderConfig:
        params = dict(self.params)
        return OpenAIProviderConfig(
            **self._account(),
            # A field of the body like any other, to whoever writes --params.
            max_output_tokens=params.pop("max_output_tokens", None),
            params=params,
            dimensions=self.dimensions,
        )

    def _anthropic(self) -> AnthropicProviderConfig:
        params = {**self.params, **self.anthropic_message_params}
        max_tokens = self.anthropic_max_tokens or params.pop("max_tokens", None)
        if max_tokens is None:
            raise click.UsageError(
                "Give --anthropic-max-tokens: Anthropic wants an upper bound of each answer."
            )
        return AnthropicProviderConfig(
            **self._account(),
            max_tokens=max_tokens,
            message_params=params,
            prompt_cache=self.anthropic_prompt_cache,  # type: ignore[arg-type]  # a click.Choice
        )

    def _gemini(self) -> GeminiProviderConfig:
        params = {**self.params, **self.gemini_generation_config}
        return GeminiProviderConfig(
            **self._account(),
            backend=self.gemini_backend or "auto",  # type: ignore[arg-type]  # a click.Choice
            input_mode=self.gemini_input_mode or "auto",  # type: ignore[arg-type]
            max_output_tokens=params.pop("maxOutputTokens", None),
            generation_config=params,
            dimensions=self.dimensions,
            gcs_uri=self.gcs_uri,
            project=self.google_cloud_project,
            location=self.google_cloud_location,
        )


def _json_object(_: click.Context, __: click.Parameter, value: str) -> Mapping[str, Any]:
    try:
        decoded = json.loads(value)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error}.") from error
    if not isinstance(decoded, dict):
        raise click.BadParameter(f"{value} is no JSON object, as '{{\"temperature\": 0}}' is.")
    return decoded


model_options = gathered(
    Model,
    "model",
    click.option("--model", required=True, metavar="M", help="As gpt-4.1-mini."),
    click.option(
        "--provider",
        type=click.Choice(list(_ENDPOINTS)),
        default="openai",
        show_default=True,
        help="Whose batch API.",
    ),
    click.option(
        "--endpoint",
        type=click.Choice(sorted({each for names in _ENDPOINTS.values() for each in names})),
        help="Which of its endpoints.  [default: responses, messages, generate]",
    ),
    click.option(
        "--base-url",
        metavar="URL",
        help="Another host of the same protocol.  [default: the SDK's variable, else the provider]",
    ),
    click.option(
        "--api-version",
        metavar="V",
        help="Azure's api-version, Anthropic's version header, Gemini's API version.",
    ),
    click.option(
        "--params",
        callback=_json_object,
        default="{}",
        metavar="JSON",
        help="Further fields of each request, as '{\"temperature\": 0}'.",
    ),
    click.option(
        "--dimensions",
        type=_COUNT,
        metavar="N",
        help="Length of embedding vectors.  [default: the model's own, where known]",
    ),
    click.option(
        "--enqueued-token-limit",
        type=_COUNT,
        metavar="N",
        help="Input tokens that the account may have enqueued at once for this model.",
    ),
    click.option(
        "--anthropic-max-tokens",
        type=_COUNT,
        metavar="N",
        help="Upper bound of each answer; Anthropic wants one.",
    ),
    click.option(
        "--anthropic-message-params",
        callback=_json_object,
        default="{}",
        metavar="JSON",
        help="Further fields of each request to Anthropic.",
    ),
    click.option(
        "--anthropic-prompt-cache",
        type=click.Choice(["5m", "1h"]),
        help="How long the system prompt stays cached.",
    ),
    click.option(
        "--gemini-backend",
        type=click.Choice(["auto", "developer", "vertex"]),
        help="The Developer API or Vertex AI.  [default: auto: $GOOGLE_GENAI_USE_VERTEXAI]",
    ),
    click.option(
        "--gemini-input-mode",
        type=click.Choice(["auto", "inline", "file"]),
        help="How the Developer API gets requests.  [default: auto: a file where they are many]",
    ),
    click.option(
        "--gemini-generation-config",
        callback=_json_object,
        default="{}",
        metavar="JSON",
        help="Fields of each request's generationConfig.",
    ),
    click.option("--gcs-uri", metavar="URL", help="Vertex AI: where files are staged, gs://…"),
    click.option(
        "--google-cloud-project", metavar="P", help="Vertex AI.  [default: $GOOGLE_CLOUD_PROJECT]"
    ),
    click.option(
        "--google-cloud-location", metavar="L", help="Vertex AI.  [default: $GOOGLE_CLOUD_LOCATION]"
    ),
)
