"""A child process that reads many rows and reports how much memory that took."""

import sys
from pathlib import Path

from batchor_core import BatchRunner, CsvItemSource
from batchor_core.planning import tokens
from tests.core.world import job_for


def main(folder: str, rows: int) -> None:
    """Print the peak of resident memory in bytes."""
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None
    path = Path(folder, "input.csv")
    with path.open("w") as file:
        file.write("prompt\n")
        file.writelines(f"Prompt number {n}: {'lorem ipsum ' * 25}\n" for n in range(rows))
    job = job_for("http://127.0.0.1:1/v1", CsvItemSource(path))
    with BatchRunner(Path(folder) / "state.sqlite3") as runner:
        run = runner.open(job, run_id="run-1").ingest()
        assert run.record.total_items == rows
    print(peak_bytes())  # noqa: T201 - its answer


def peak_bytes() -> int:
    """Return the peak of this program; ``ru_maxrss`` would count what forked it as well."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
