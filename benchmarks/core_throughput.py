"""Rows per second of client CPU time, end to end against a simulator in another process.

    python benchmarks/core_throughput.py --rows 200000 [--structured] [--profile]

Prints what each step of the cycle took, and how much memory the client had at most. The
simulator's own work is in another process and is not counted.
"""

import argparse
import cProfile
import pstats
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from simulator_process import simulator_process

from batchor_core import BatchJob, BatchRunner, CsvItemSource, OpenAIProviderConfig
from batchor_core.executor import advance
from batchor_core.model.policies import TimingPolicy

PROMPT = "Please read this support ticket and say what it is about. " * 5


class Ticket(BaseModel):
    """A small structured output."""

    topic: str
    urgency: int
    is_complaint: bool
    language: str


class StepTimer:
    """Adds up the CPU time of each step of the cycle."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def install(self) -> None:
        """Put a stop watch around each step."""
        advance._STEPS = tuple(  # noqa: SLF001 - a benchmark may look inside
            (name, self._timed(name, step))
            for name, step in advance._STEPS  # noqa: SLF001
        )

    def _timed(self, name: str, step: Any) -> Any:
        def timed(cycle: Any) -> bool:
            before = time.process_time()
            try:
                return bool(step(cycle))
            finally:
                self.seconds[name] += time.process_time() - before

        return timed


def main() -> None:
    """Run the benchmark and print its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--text", action="store_true", help="plain text instead of a model")
    parser.add_argument("--profile", action="store_true", help="print the 40 costliest functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, simulator_process(batch_seconds=0.5) as url:
        path = _write_input(Path(folder), options.rows)
        _measure(Path(folder), path, f"{url}/v1", options)


def _write_input(folder: Path, rows: int) -> Path:
    path = folder / "input.csv"
    with path.open("w") as file:
        file.write("id,prompt\n")
        file.writelines(f"ticket-{n},Ticket {n}: {PROMPT}\n" for n in range(rows))
    return path


def _measure(folder: Path, path: Path, base_url: str, options: argparse.Namespace) -> None:
    job = BatchJob(
        items=CsvItemSource(path, id_column="id"),
        provider_config=OpenAIProviderConfig(
            model="gpt-4.1-mini", base_url=base_url, api_key="sk-benchmark"
        ),
        structured_output=None if options.text else Ticket,
        timing=TimingPolicy(poll_s=0.5),
    )
    timer, profile = StepTimer(), cProfile.Profile()
    timer.install()
    with BatchRunner("memory", folder / "artifacts") as runner:
        cpu, wall = time.process_time(), time.perf_counter()
        if options.profile:
            profile.enable()
        run = runner.run_and_wait(job)
        profile.disable()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        counts = run.counts()
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{run.status}: {counts}")
    print(f"rows          {options.rows:>12,}")
    print(f"wall          {wall:>12.2f} s")
    print(f"client CPU    {cpu:>12.2f} s")
    print(f"rows/CPU s    {options.rows / cpu:>12,.0f}")
    print(f"peak memory   {peak / 1e6:>12,.0f} MB")
    for name, seconds in timer.seconds.most_common():
        print(f"  {name:<10} {seconds:>8.2f} s {seconds / cpu:>6.0%}")
    print(f"  {'other':<10} {cpu - sum(timer.seconds.values()):>8.2f} s")


if __name__ == "__main__":
    main()
