"""Write docs/crash-matrix.md from the probes; ``--check`` only tells whether it is current."""

import sys
from collections.abc import Iterator
from pathlib import Path

from batchor_core.executor.probes import CRASH_POINTS

PAGE = Path(__file__).parent.parent / "docs" / "crash-matrix.md"
INTRODUCTION = """\
# Crash matrix

Generated from `batchor_core/executor/probes.py` by `scripts/generate_crash_matrix.py`.

A process that advances a batch run may die at any moment, by `kill -9`, an evicted pod or a power
cut. These are the points at which it would leave something behind: one beside each commit, each
file that is finished and each call to the provider. Whoever advances the run next, in this process
or in any other, repairs it. No crash costs a row, and none has a request paid twice.

Every crash costs what is left of the dead process's lease (120 s by default), unless the process
came to give it back. What is listed under "cost" comes on top.

The tests raise an exception, and end a process with `os._exit`, at every one of these points, on
SQLite and on PostgreSQL (`tests/core/test_crashes.py`, `tests/core/test_postgres_runs.py`); they
`kill -9` processes at random moments (`tests/core/test_kill9.py`), and mix crashes with faults,
control and jumping clocks (`tests/core/test_state_machine.py`). `scripts/soak` runs the last two
for as long as you like.
"""


def page() -> str:
    """Return the page's text."""
    return INTRODUCTION + "\n" + "\n".join(_table()) + "\n"


def _table() -> Iterator[str]:
    yield "| crash right after | what is left | who repairs it | what it costs |"
    yield "|---|---|---|---|"
    for point in CRASH_POINTS:
        yield f"| `{point.name}` | {point.leaves} | {point.repairer} | {point.cost} |"


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
