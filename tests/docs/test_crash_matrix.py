"""The page on crashes."""

from batchor_core.executor.probes import CRASH_POINTS, PROBES
from scripts.generate_crash_matrix import PAGE, page


def test_page_is_current() -> None:
    """An operator would look up what a crash leaves in a table of another version."""
    assert PAGE.read_text() == page(), "run python scripts/generate_crash_matrix.py"


def test_every_probe_has_its_row() -> None:
    """A point of crash would have no entry, or an empty one, and nobody would know its cost."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [row[1].strip(" `") for row in rows] == list(PROBES)
    assert all(cell.strip() for row in rows for cell in row[1:-1])
    assert len({point.name for point in CRASH_POINTS}) == len(CRASH_POINTS)
