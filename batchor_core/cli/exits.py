"""Exit statuses: scripts rely on them, so they are never renumbered."""

from enum import IntEnum

from batchor_core.model.records import RunRecord
from batchor_core.model.states import RunControlState, RunState


class Exit(IntEnum):
    """What a command says to the shell."""

    OK = 0
    """Every item is ok; or the run still goes on, and nobody asked to wait for it."""
    ERROR = 1
    """Nothing came of it; one line on stderr says why."""
    USAGE = 2
    """The command line itself is wrong."""
    FAILED_ITEMS = 3
    """The run is finished, and some of its items failed."""
    PAUSED = 4
    """The run is paused and waits for ``resume``."""
    CANCELLED = 5
    """The run was cancelled."""
    TIMED_OUT = 6
    """The run is not finished in the time given; it goes on."""
    INTERRUPTED = 130
    """Ctrl-C; the run goes on."""


_OF_STATE = {
    RunState.SUCCEEDED: Exit.OK,
    RunState.COMPLETED_WITH_FAILURES: Exit.FAILED_ITEMS,
    RunState.CANCELLED: Exit.CANCELLED,
    RunState.FAILED: Exit.ERROR,
}


def exit_of(run: RunRecord) -> Exit:
    """Return the exit status that tells where a run is."""
    if run.state.is_terminal:
        return _OF_STATE[run.state]
    return Exit.PAUSED if run.control is RunControlState.PAUSE else Exit.OK
