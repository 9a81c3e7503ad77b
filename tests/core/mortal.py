"""Death within one test process: what a killed process could not do any more, it cannot do here."""

from collections.abc import Callable
from typing import Any, NoReturn

from batchor_core.store.orchestration import OrchestratorStore

Passing = tuple[int, str | None]
"""The n-th passing, from 1, of the probe of this name, or of any probe."""


class DiedError(BaseException):
    """What ends a process in a test: nothing of ours may catch it."""


class MortalStore:
    """The store as one process sees it: after the process's death no call gets through.

    An exception alone would be no death: on the way out the lease would be given back.
    """

    def __init__(self, store: OrchestratorStore) -> None:
        self._store = store
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self._is_dead:
            raise DiedError
        return getattr(self._store, name)

    def close(self) -> None:
        """Do nothing: the database outlives its processes."""

    def die(self) -> NoReturn:
        """End the process that this store belongs to."""
        self._is_dead = True
        raise DiedError


class AtProbe:
    """A probe that acts once: at the passing of a probe that it is armed for."""

    def __init__(self) -> None:
        self.disarm()

    def arm(self, passing: Passing, action: Callable[[], object]) -> None:
        """Act once, from now on."""
        self._left, self._name = passing
        self._action = action

    def disarm(self) -> None:
        """Do nothing any more."""
        self._left, self._action, self._name = 0, None, None

    def __call__(self, name: str) -> None:
        if self._action is None or self._name not in (None, name):
            return
        self._left -= 1
        if not self._left:
            action = self._action
            self.disarm()
            action()
