"""What is printed on stdout: JSON for programs, a few lines for people."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from batchor_core.model.records import RunCounts, RunRecord
from batchor_core.model.states import RunControlState
from batchor_core.store.protocol import Store


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a batch run stands, from the store alone: no key is needed to see it.

    Attributes:
        cost_usd: Of what is collected so far; None where the model's price is unknown.
    """

    run: RunRecord
    counts: RunCounts
    cost_usd: float | None

    @classmethod
    def read(cls, store: Store, run_id: str) -> "Standing":
        """Read it.

        Raises:
            RunNotFoundError: There is no such run.
        """
        run = store.get_run(run_id)
        return cls(run=run, counts=store.counts(run_id), cost_usd=store.usage(run_id).cost_usd)

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints; programs rely on the names."""
        return {
            "run_id": self.run.run_id,
            "status": self.run.state,
            "control_state": self.run.control,
            "control_reason": self.run.control_reason,
            "counts": asdict(self.counts),
            "cost_usd": self.cost_usd,
        }

    def as_text(self) -> str:
        """Return the same for people."""
        lines = [
            f"Run {self.run.run_id}: {_state(self.run)}",
            f"  items: {items_text(self.counts)}",
            f"  cost:  {_cost(self.cost_usd)}",
        ]
        if self.run.error_message:
            lines.append(f"  error: {self.run.error_message}")
        return "\n".join(lines)


def show_run(store: Store, run_id: str, *, as_json: bool) -> RunRecord:
    """Print where a run stands, and return its record."""
    standing = Standing.read(store, run_id)
    click.echo(json.dumps(standing.as_json()) if as_json else standing.as_text())
    return standing.run


def show_runs(standings: Sequence[Standing], *, as_json: bool) -> None:
    """Print many runs: one JSON array, or a table."""
    if as_json:
        click.echo(json.dumps([s.as_json() | _instants(s.run) for s in standings]))
        return
    if not standings:
        click.echo("No batch runs yet.")
        return
    rows = [
        (
            s.run.run_id,
            _state(s.run),
            items_text(s.counts),
            _cost(s.cost_usd),
            s.run.created_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        )
        for s in standings
    ]
    echo_table(("RUN", "STATUS", "ITEMS", "COST", "STARTED"), rows)


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, in columns as wide as their longest value."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


def items_text(counts: RunCounts) -> str:
    """Return counts in words, without those that are zero."""
    parts = {
        "ok": counts.ok,
        "failed": counts.failed,
        "retrying": counts.retrying,
        "in flight": counts.in_flight,
        "ready": counts.ready,
    }
    named = ", ".join(f"{count:,} {word}" for word, count in parts.items() if count)
    return f"{counts.total:,}" + (f" ({named})" if named else "")


def _state(run: RunRecord) -> str:
    if run.state.is_terminal or run.control is RunControlState.RUN:
        return run.state
    word = "paused" if run.control is RunControlState.PAUSE else "being cancelled"
    return f"{run.state}, {word}" + (f" ({run.control_reason})" if run.control_reason else "")


def _cost(cost_usd: float | None) -> str:
    if cost_usd is None:
        return "unknown"
    return f"${cost_usd:,.2f}" if cost_usd >= 1 else f"${cost_usd:.6f}"


def _instants(run: RunRecord) -> dict[str, Any]:
    finished = run.finished_at.isoformat() if run.finished_at else None
    return {"created_at": run.created_at.isoformat(), "finished_at": finished}
