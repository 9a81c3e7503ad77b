"""Where state and files lie, and how providers are reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import Field, SecretStr

from batchor_core import BatchRunner, OpenAIEnqueueLimitConfig, OpenAIProviderConfig, TimingPolicy
from batchor_core.integration import ProviderFactory
from batchor_dagster.hold import HoldKind


class BatchorResource(dg.ConfigurableResource[Any]):
    """The control plane and the data plane that all batch assets of a code location share.

    Every process of the code location (user code server, daemon, run workers) must reach both:
    with workers on several machines use a PostgreSQL URL and an object store.

    Attributes:
        state: Path of a SQLite file, or a ``postgresql://`` URL; default
            ``$BATCHOR_HOME/state.sqlite3``.
        artifacts: A folder or any fsspec URL; default: beside the SQLite file.
        namespace: Who owns the batch runs; default: the code location's name. Two code locations
            may share a store only under different namespaces.
        hold: How open backfills are kept open: ``queued``, ``suspended`` or ``none``.
        poll_s: Seconds between two looks at a working provider batch.
        lease_s: Seconds after which a silent process loses a batch run to another.
        settle_s: Seconds for which an unacknowledged batch is looked for before it is sent again.
    """

    state: str | None = Field(default=None, description="SQLite path or postgresql:// URL.")
    artifacts: str | None = Field(default=None, description="Folder or fsspec URL.")
    namespace: str | None = Field(default=None, description="Default: the code location's name.")
    hold: str = Field(default=HoldKind.QUEUED.value, description="queued, suspended or none.")
    poll_s: float = Field(default=30.0, gt=0, description="Seconds between two polls.")
    lease_s: float = Field(default=120.0, gt=0, description="Seconds of a lease.")
    settle_s: float = Field(default=180.0, ge=0, description="Seconds of settling.")

    @property
    def timing(self) -> TimingPolicy:
        """The clockwork of batch runs that are started now."""
        return TimingPolicy(poll_s=self.poll_s, lease_s=self.lease_s, settle_s=self.settle_s)

    @property
    def hold_kind(self) -> HoldKind:
        """The kind of hold."""
        return HoldKind(self.hold)

    @contextmanager
    def runner(self, location: str | None, connect: ProviderFactory) -> Iterator[BatchRunner]:
        """Give a runner over this store, closed after the block.

        Args:
            location: Name of the code location; the namespace unless one is configured.
            connect: Makes the adapter of a stored provider config.
        """
        with BatchRunner(
            self.state,
            self.artifacts,
            namespace=self.namespace or location or "default",
            connect=connect,
        ) as runner:
            yield runner


class OpenAIBatchResource(dg.ConfigurableResource[Any]):
    """An account of OpenAI, or of any host that speaks its protocol.

    Attributes:
        api_key: Usually ``EnvVar("OPENAI_API_KEY")``; without it the SDK reads that variable.
        base_url: Another host; without it the SDK reads ``OPENAI_BASE_URL``.
        enqueued_tokens: The account's limit of enqueued input tokens per model, where known.
        enqueued_requests: The account's limit of enqueued requests per model, where known.
    """

    api_key: str | None = Field(default=None, description="Default: $OPENAI_API_KEY.")
    base_url: str | None = Field(default=None, description="Default: $OPENAI_BASE_URL.")
    organization: str | None = Field(default=None, description="Default: $OPENAI_ORG_ID.")
    project: str | None = Field(default=None, description="Default: $OPENAI_PROJECT_ID.")
    enqueued_tokens: int | None = Field(default=None, gt=0, description="Queue limit, in tokens.")
    enqueued_requests: int | None = Field(default=None, gt=0, description="In requests.")

    def provider_config(
        self, *, credentials: str, model: str, params: dict[str, Any], max_output_tokens: int | None
    ) -> OpenAIProviderConfig:
        """Return the core's config of a model on this account.

        Args:
            credentials: This resource's key; stored, so that other processes find it again.
            model: As ``gpt-4.1-mini``.
            params: Further fields of each request's body.
            max_output_tokens: Upper bound of an answer.
        """
        return OpenAIProviderConfig(
            model=model,
            base_url=self.base_url,
            organization=self.organization,
            project=self.project,
            params=params,
            max_output_tokens=max_output_tokens,
            enqueue_limit=OpenAIEnqueueLimitConfig(
                max_tokens=self.enqueued_tokens, max_requests=self.enqueued_requests
            ),
            credentials=credentials,
            api_key=self._secret(),
        )

    def with_key(self, config: OpenAIProviderConfig) -> OpenAIProviderConfig:
        """Return a stored config with this account's key put back."""
        return config.model_copy(update={"api_key": self._secret()})

    def _secret(self) -> SecretStr | None:
        return SecretStr(self.api_key) if self.api_key else None
