"""Resources for accounts of providers: key, host, queue limits."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, SecretStr

from batchor_core import (
    AnthropicProviderConfig,
    ConfigurationError,
    EnqueueLimitConfig,
    GeminiProviderConfig,
    OpenAIProviderConfig,
    TokenPrice,
)
from batchor_core.integration import ProviderConfig
from batchor_dagster.resources.client import ClientContext, client_in_step

if TYPE_CHECKING:
    from anthropic import Anthropic
    from google.genai import Client
    from openai import OpenAI


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The model that a batch asset declares, from which an account makes a provider config.

    Attributes:
        credentials: The account's resource key; stored, so that other processes find the account.
        model: As the provider spells it.
        endpoint: As ``chat`` or ``embeddings``; None for the provider's usual one.
        params: Further fields of each request's body.
        max_output_tokens: Upper bound of an answer.
        dimensions: Length of embedding vectors.
        price: The price of tokens; None for the known prices.
    """

    credentials: str
    model: str
    endpoint: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    dimensions: int | None = None
    price: TokenPrice | None = None


_NO_MODEL = ModelRequest(credentials="", model="none", max_output_tokens=1)
"""For an SDK client of the account; a config has to name a model."""


class ProviderBatchResource(dg.ConfigurableResource[Any]):
    """An account of a provider; use one of its subclasses.

    Attributes:
        api_key: Usually an ``EnvVar``; without it the SDK reads its own variable.
        base_url: Another host; without it the SDK reads its own variable.
        enqueued_tokens: The account's limit of enqueued input tokens per model, where known.
        enqueued_requests: The account's limit of enqueued requests per model, where known.
    """

    api_key: str | None = Field(
        default=None, repr=False, description="Default: the SDK's own variable."
    )
    base_url: str | None = Field(default=None, description="Default: the SDK's own variable.")
    enqueued_tokens: int | None = Field(default=None, gt=0, description="Queue limit, in tokens.")
    enqueued_requests: int | None = Field(default=None, gt=0, description="In requests.")

    def provider_config(self, wanted: ModelRequest) -> ProviderConfig:
        """Return the core's config of a model on this account.

        Raises:
            ConfigurationError: The provider does not have an option that is set.
        """
        raise NotImplementedError

    def get_client(self, context: ClientContext) -> AbstractContextManager[Any]:
        """Open the provider's own SDK client of this account, for calls outside of batches.

        The client is closed after the block. Calls, and prompt, completion and total tokens are
        added up as metadata of the asset (or the op's output), under ``<provider>.<model>.…``.
        Streamed and asynchronous calls are not counted.

        Args:
            context: The context of the asset, op or asset check.

        Raises:
            ConfigurationError: The step makes several assets: see ``get_client_for_asset``.
        """
        return client_in_step(self.provider_config(_NO_MODEL), context)

    def get_client_for_asset(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey
    ) -> AbstractContextManager[Any]:
        """Open the client as ``get_client`` does, in a step that makes several assets.

        Args:
            context: The step's.
            asset_key: The asset whose metadata shows the usage.

        Raises:
            ConfigurationError: The step does not make this asset.
        """
        return client_in_step(self.provider_config(_NO_MODEL), context, asset_key)

    def with_key(self, config: ProviderConfig) -> ProviderConfig:
        """Return a stored config, which has no key, with the key of this account."""
        return config.model_copy(update={"api_key": self._secret()})

    def _account(self, wanted: ModelRequest) -> dict[str, Any]:
        """Return the fields that all providers' configs have."""
        fields = {
            "model": wanted.model,
            "base_url": self.base_url,
            "enqueue_limit": EnqueueLimitConfig(
                max_tokens=self.enqueued_tokens, max_requests=self.enqueued_requests
            ),
            "credentials": wanted.credentials,
            "price": wanted.price,
            "api_key": self._secret(),
        }
        return fields | ({"endpoint": wanted.endpoint} if wanted.endpoint else {})

    def _secret(self) -> SecretStr | None:
        return SecretStr(self.api_key) if self.api_key else None


class OpenAIBatchResource(ProviderBatchResource):
    """An account of OpenAI, or of any host that speaks its protocol.

    Attributes:
        organization: Default: ``$OPENAI_ORG_ID``.
        project: Default: ``$OPENAI_PROJECT_ID``.
        api_version: Azure's ``api-version``, for resources that are not on its ``/openai/v1``.
    """

    organization: str | None = Field(default=None, description="Default: $OPENAI_ORG_ID.")
    project: str | None = Field(default=None, description="Default: $OPENAI_PROJECT_ID.")
    api_version: str | None = Field(default=None, description="Azure's api-version.")

    def provider_config(self, wanted: ModelRequest) -> ProviderConfig:
        """See ``ProviderBatchResource.provider_config``."""
        return OpenAIProviderConfig(
            **self._account(wanted),
            organization=self.organization,
            project=self.project,
            api_version=self.api_version,
            params=wanted.params,
            max_output_tokens=wanted.max_output_tokens,
            dimensions=wanted.dimensions,
        )

    def get_client(self, context: ClientContext) -> "AbstractContextManager[OpenAI]":
        """See ``ProviderBatchResource.get_client``."""
        return super().get_client(context)

    def get_client_for_asset(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey
    ) -> "AbstractContextManager[OpenAI]":
        """See ``ProviderBatchResource.get_client_for_asset``."""
        return super().get_client_for_asset(context, asset_key)


class AnthropicBatchResource(ProviderBatchResource):
    """An account of Anthropic.

    Attributes:
        api_version: The ``anthropic-version`` header; ``2023-06-01`` takes ``temperature``.
        prompt_cache: How long system prompts stay cached: ``5m`` or ``1h``.
        workspace: The ``anthropic-workspace-id`` header.
    """

    api_version: str | None = Field(default=None, description="The anthropic-version header.")
    prompt_cache: str | None = Field(default=None, description="5m or 1h.")
    workspace: str | None = Field(default=None, description="The anthropic-workspace-id header.")

    def provider_config(self, wanted: ModelRequest) -> ProviderConfig:
        """See ``ProviderBatchResource.provider_config``."""
        if wanted.max_output_tokens is None:
            raise ConfigurationError(
                f"model {wanted.model!r}: Anthropic wants an upper bound of its answers: give "
                "max_output_tokens"
            )
        if wanted.dimensions is not None:
            raise ConfigurationError("dimensions: Anthropic makes no embeddings")
        return AnthropicProviderConfig(
            **self._account(wanted),
            api_version=self.api_version,
            prompt_cache=self.prompt_cache,  # type: ignore[arg-type]  # checked there
            workspace=self.workspace,
            message_params=wanted.params,
            max_tokens=wanted.max_output_tokens,
        )

    def get_client(self, context: ClientContext) -> "AbstractContextManager[Anthropic]":
        """See ``ProviderBatchResource.get_client``."""
        return super().get_client(context)

    def get_client_for_asset(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey
    ) -> "AbstractContextManager[Anthropic]":
        """See ``ProviderBatchResource.get_client_for_asset``."""
        return super().get_client_for_asset(context, asset_key)


class GeminiBatchResource(ProviderBatchResource):
    """An account of Gemini, on the Developer API or on Vertex AI.

    Attributes:
        backend: ``developer``, ``vertex`` or ``auto`` (``$GOOGLE_GENAI_USE_VERTEXAI``).
        cloud_project: Vertex: default ``$GOOGLE_CLOUD_PROJECT``.
        location: Vertex: default ``$GOOGLE_CLOUD_LOCATION``.
        gcs_uri: Vertex: where requests and answers are staged, as ``gs://bucket/folder``.
    """

    backend: str = Field(default="auto", description="developer, vertex or auto.")
    cloud_project: str | None = Field(default=None, description="Default: $GOOGLE_CLOUD_PROJECT.")
    location: str | None = Field(default=None, description="Default: $GOOGLE_CLOUD_LOCATION.")
    gcs_uri: str | None = Field(default=None, description="Where Vertex AI's files are staged.")

    def provider_config(self, wanted: ModelRequest) -> ProviderConfig:
        """See ``ProviderBatchResource.provider_config``."""
        return GeminiProviderConfig(
            **self._account(wanted),
            backend=self.backend,  # type: ignore[arg-type]  # checked there
            project=self.cloud_project,
            location=self.location,
            gcs_uri=self.gcs_uri,
            generation_config=wanted.params,
            max_output_tokens=wanted.max_output_tokens,
            dimensions=wanted.dimensions,
        )

    def get_client(self, context: ClientContext) -> "AbstractContextManager[Client]":
        """See ``ProviderBatchResource.get_client``."""
        return super().get_client(context)

    def get_client_for_asset(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey
    ) -> "AbstractContextManager[Client]":
        """See ``ProviderBatchResource.get_client_for_asset``."""
        return super().get_client_for_asset(context, asset_key)
