"""A run's summary, rebuilt from its journal alone.

The journal is the one event stream: what listeners are told, what metrics count, and what an
audit reads. This module says what its events mean for the counts, usage and cost of a run.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from batchor_core.model.records import Event, RunCounts, Usage
from batchor_core.model.states import RunControlState, RunState

_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, kw_only=True)
class JournalSummary:
    """Where a run stands, by its events."""

    run_id: str | None
    status: RunState
    control_state: RunControlState
    control_reason: str | None
    counts: RunCounts
    usage: Usage

    @property
    def cost_usd(self) -> float | None:
        """Of what is collected so far; None where the model's price is unknown."""
        return self.usage.cost_usd


def summary_from_events(events: Iterable[Event]) -> JournalSummary:
    """Return what the events of one run add up to.

    Args:
        events: The run's whole journal, in order (``Store.list_events``).
    """
    reading = _Reading()
    for event in events:
        reading.take(event)
    return reading.summary()


class _Reading:
    """The sums so far."""

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._status = RunState.INGESTING
        self._control = RunControlState.RUN
        self._reason: str | None = None
        self._items: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._costs: list[float | None] = []

    def take(self, event: Event) -> None:
        self._run_id = event.run_id
        match event.kind:
            case "run.ingested":
                self._status = RunState.RUNNING
            case "run.controlled":
                self._control = RunControlState(event.data["control"])
                self._reason = event.data["reason"]
            case "run.ingestion_restarted":
                self._items.clear()
            case "run.closed":
                self._close(RunState(event.data["state"]))
            case _:
                self._move(event)

    def summary(self) -> JournalSummary:
        known = [cost for cost in self._costs if cost is not None]
        return JournalSummary(
            run_id=self._run_id,
            status=self._status,
            control_state=self._control,
            control_reason=self._reason,
            counts=RunCounts(**self._items),
            usage=Usage(
                **self._tokens,
                cost_usd=sum(known) if len(known) == len(self._costs) else None,
            ),
        )

    def _move(self, event: Event) -> None:
        """Book where the event's items went."""
        data, count = event.data, event.data.get("item_count", 0)
        match event.kind:
            case "chunk.sealed":
                self._items["ready"] += count
                if data["round"] == 0 and data["parent_seq"] is None:
                    self._items["total"] += count
            case "chunk.split":
                self._items["ready"] -= count
            case "chunk.abandoned":
                self._items.update(ready=-count, failed=count)
            case "submission.intended":
                self._items.update(ready=-count, in_flight=count)
            case "submission.voided":
                self._items.update(ready=count, in_flight=-count)
            case "submission.collected":
                self._items["in_flight"] -= self._judge(event)
            case "answers.reused":
                self._items["ready"] -= self._judge(event)
            case "retries.packed":
                self._items["retrying"] -= count

    def _judge(self, event: Event) -> int:
        """Book an outcome file; return how many items it judges."""
        data = event.data
        ok, failed, retry = (data[f"{name}_count"] for name in ("ok", "failed", "retry"))
        self._items.update(ok=ok, failed=failed, retrying=retry, reused=data["reused_count"])
        self._tokens.update({name: data[name] for name in _TOKENS})
        self._costs.append(data["cost_usd"])
        return int(ok + failed + retry)

    def _close(self, state: RunState) -> None:
        self._status = state
        for place in ("retrying", "in_flight", "ready"):
            self._items["failed"] += self._items.pop(place, 0)
