"""How a run gets on, on stderr: a bar on a terminal, a line a change elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from batchor_core.cli.output import items_text
from batchor_core.run import Run

Show = Callable[[object], None]
"""To be called after each cycle; what it is given does not matter."""


@contextmanager
def progress_of(run: Run) -> Iterator[Show]:
    """Show how a run gets on, as long as the block lasts."""
    if not sys.stderr.isatty():
        yield _lines(run)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _bar(run, bar)


def _bar(run: Run, bar: Progress) -> Show:
    task = bar.add_task(run.run_id, total=None, status="")

    def show(_: object) -> None:
        counts = run.counts()
        done = counts.ok + counts.failed
        bar.update(task, total=counts.total or None, completed=done, status=_status(run))

    return show


def _lines(run: Run) -> Show:
    shown = ""

    def show(_: object) -> None:
        nonlocal shown
        line = f"{run.run_id}: {_status(run)}: {items_text(run.counts())}"
        if line != shown:
            shown = line
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    return show


def _status(run: Run) -> str:
    return run.status.replace("_", " ")
