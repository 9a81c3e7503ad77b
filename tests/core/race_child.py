"""A child process that drives a run together with others, on the machine's own clock."""

import os
import random
import sys
from pathlib import Path

from batchor_core import BatchRunner
from batchor_core.planning import tokens
from tests.core.world import job_for, race_options


def main(base_url: str, folder: str, rows: int, seed: int) -> None:
    """Drive the run to its end; wait a little now and then, so that the others get their turn."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None
    dice = random.Random(seed)
    with BatchRunner(Path(folder) / "state.sqlite3", Path(folder) / "artifacts") as runner:
        run = runner.open(job_for(base_url, rows, **race_options()), run_id="run-1")
        while not run.refresh().is_finished:
            run.advance(dice.choice([0.05, 0.2, 1.0]))
            runner.clock.sleep(dice.random() * 0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
