"""``BatchorResource``: where the state and the files of batch runs are stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pydantic import Field

from batchor_core import BatchRunner, ConfigurationError, TimingPolicy
from batchor_core.integration import Clock, ProviderFactory
from batchor_dagster.constants import HoldKind
from batchor_dagster.resources.listeners import load_listener


class BatchorResource(dg.ConfigurableResource[Any]):
    """The state and the files that all batch assets of a code location share.

    Every process of the code location (code server, run workers, step workers) must reach both.
    With workers on several machines use a PostgreSQL URL and an object store.

    The resource holds settings only: each step and each tick opens the store, and closes it at its
    end.

    Attributes:
        state: Path of a SQLite file, or a ``postgresql://`` URL (usually an ``EnvVar``: it holds a
            password); default: ``$BATCHOR_HOME/state.sqlite3``.
        artifacts: A folder or any fsspec URL; default: beside the SQLite file.
        namespace: Who owns the batch runs; default: the code location's name. Two code locations
            may share a store only under different namespaces.
        hold: The kind of hold that keeps a backfill in progress: ``queued``, ``suspended`` or
            ``none``.
        poll_s: Seconds between two polls of a provider batch.
        lease_s: Seconds after which a silent process loses its batch run to another process.
        settle_s: Seconds for which an unacknowledged batch is looked for before it is sent again.
        gone_after_s: Seconds for which the sensors have to miss an asset or a partition in the code
            location before they cancel its waiters: a rollback must not cancel paid batches.
        budget_usd_per_day: Budget of one account and model per day (UTC), in US dollars, for all
            batch runs of this store; None: no bound.
        listeners: Listeners that are told of each event of a batch run, as import paths of classes
            or functions without arguments (``batchor_core:OpenTelemetryListener``). Each is called
            once in each process.
    """

    state: str | None = Field(
        default=None, repr=False, description="SQLite path or postgresql:// URL."
    )
    artifacts: str | None = Field(default=None, description="Folder or fsspec URL.")
    namespace: str | None = Field(default=None, description="Default: the code location's name.")
    hold: str = Field(default=HoldKind.QUEUED.value, description="queued, suspended or none.")
    poll_s: float = Field(default=30.0, gt=0, description="Seconds between two polls.")
    lease_s: float = Field(default=120.0, gt=0, description="Seconds of a lease.")
    settle_s: float = Field(default=180.0, ge=0, description="Seconds of settling.")
    gone_after_s: float = Field(
        default=3600.0, ge=0, description="Seconds until a missing definition is taken to be gone."
    )
    budget_usd_per_day: float | None = Field(
        default=None, gt=0, description="Of one account and model, in US dollars."
    )
    listeners: list[str] = Field(
        default_factory=list, description="Import paths, as batchor_core:OpenTelemetryListener."
    )

    @property
    def timing(self) -> TimingPolicy:
        """The intervals of batch runs that start now."""
        return TimingPolicy(poll_s=self.poll_s, lease_s=self.lease_s, settle_s=self.settle_s)

    @property
    def clock(self) -> Clock | None:
        """The clock of the batch runs, which the test kit replaces; None is the store's."""
        return None

    @property
    def hold_kind(self) -> HoldKind:
        """The kind of hold.

        Raises:
            ConfigurationError: ``hold`` is no kind of hold.
        """
        try:
            return HoldKind(self.hold)
        except ValueError:
            names = ", ".join(HoldKind)
            raise ConfigurationError(f"hold is {self.hold!r}: give one of {names}") from None

    @contextmanager
    def runner(self, location: str | None, connect: ProviderFactory) -> Iterator[BatchRunner]:
        """Open a runner on this store; close it after the block.

        Args:
            location: Name of the code location, which is the namespace unless one is configured.
            connect: Makes the provider adapter for a stored provider config.

        Raises:
            ConfigurationError: The store cannot be opened, or a listener cannot be made.
        """
        with BatchRunner(
            self.state,
            self.artifacts,
            namespace=self.namespace or location or "default",
            connect=connect,
            clock=self.clock,
            listeners=[load_listener(path) for path in self.listeners],
        ) as runner:
            yield runner
