"""Write docs/states.md from the transition tables; ``--check`` only tells whether it is current."""

import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from batchor_core.model import states, transitions
from batchor_core.model.transitions import Transition

PAGE = Path(__file__).parent.parent / "docs" / "states.md"
MACHINES: tuple[tuple[str, type[StrEnum], tuple[Transition[StrEnum], ...]], ...] = (
    ("Batch run", states.RunState, transitions.RUN_TRANSITIONS),
    ("Chunk", states.ChunkState, transitions.CHUNK_TRANSITIONS),
    ("Submission", states.SubmissionState, transitions.SUBMISSION_TRANSITIONS),
    ("Waiter", states.WaiterState, transitions.WAITER_TRANSITIONS),
)


def page() -> str:
    """Return the page's text."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# States"
    yield ""
    yield "Generated from `batchor_core/model/` by `scripts/generate_state_page.py`: the SQL guards"
    yield "are made from the same tables."
    for title, enum, table in MACHINES:
        yield from ("", f"## {title}", "", "```mermaid", "stateDiagram-v2")
        yield f"    [*] --> {next(iter(enum)).value}"
        for row in table:
            yield f"    {row.source.value} --> {row.target.value}: {row.when}"
        yield from ("```", "", "| state | what a crash leaves behind |", "|---|---|")
        for member, sentence in _sentences(enum):
            yield f"| `{member}` | {sentence} |"


def _sentences(enum: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Yield (state, sentence): the string that stands below each member in the source."""
    lines = inspect.getsource(enum).splitlines()
    for number, line in enumerate(lines):
        name = line.strip().split(" = ")[0]
        if name in enum.__members__:
            yield enum[name].value, lines[number + 1].strip().strip('"')


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
