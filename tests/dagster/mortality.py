"""Death of a tick or of a Dagster run's process, between any two commits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import dagster as dg
from pydantic import PrivateAttr

from batchor_core import BatchRunner
from batchor_core.integration import Clock, ProviderFactory
from batchor_core.store.orchestration import OrchestratorStore
from batchor_dagster import BatchorResource
from batchor_dagster.testing import MovedClock
from tests.core.mortal import AtProbe, MortalStore
from tests.dagster.world import World

_READS = (
    *("get_", "list_", "count", "check", "close", "subscribe", "due_", "latest_", "ready_"),
    *("waiter_groups", "open_work", "in_flight", "live_", "pauses_", "usage"),
    *("successor_of", "retries_of", "costs", "lease_of", "leased", "has_", "known_", "other_"),
    *("accounts_", "scope_limits", "unwanted_"),
)


class _CommittingStore(MortalStore):
    """A mortal process's store that passes a probe, as ``store.claim``, after each write."""

    def __init__(self, store: OrchestratorStore, probe: Callable[[str], None]) -> None:
        super().__init__(store)
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name.startswith(_READS) or not callable(method):
            return method

        def write(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._probe(f"store.{name}")
            return result

        return write


class MortalBatchorResource(BatchorResource):
    """A ``BatchorResource`` whose processes may die at a probe.

    Probes are the core's, and one after each write to the store.
    """

    _death: AtProbe = PrivateAttr(default_factory=AtProbe)
    _current: MortalStore = PrivateAttr()
    _clock: MovedClock = PrivateAttr()

    @classmethod
    def of(cls, world: World, **options: Any) -> "MortalBatchorResource":
        """Make the processes of a world mortal, and its time that of its batch runs."""
        state = str(world.folder / "state.sqlite3")
        mortal = cls(state=state, poll_s=0.001, lease_s=30, settle_s=30, **options)
        mortal._clock = MovedClock(world.pass_time)
        world.pass_time = mortal._clock.advance
        # As the very object, since no configuration could carry a death.
        world.resources["batchor"] = dg.ResourceDefinition.hardcoded_resource(mortal)
        return mortal

    def die_at(self, passing: int, name: str | None = None) -> None:
        """Let a process die at the n-th passing, from 1, of a probe of this name, or of any."""
        self._death.arm((passing, name), self._die)

    def live(self) -> None:
        """Let nobody die any more."""
        self._death.disarm()

    def _die(self) -> NoReturn:
        self._current.die()

    @property
    def clock(self) -> Clock:
        """What moves on when the world's time does, so that leases of the dead run out."""
        return self._clock

    @contextmanager
    def runner(self, location: str | None, connect: ProviderFactory) -> Iterator[BatchRunner]:
        """See ``BatchorResource.runner``."""
        with super().runner(location, connect) as immortal:
            store: Any = _CommittingStore(immortal.store, self._death)
            self._current = store
            with BatchRunner(
                store,
                immortal.artifacts,
                namespace=immortal.namespace,
                connect=connect,
                clock=self.clock,
                probe=self._death,
            ) as mortal:
                yield mortal
