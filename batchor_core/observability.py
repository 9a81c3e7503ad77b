"""Hooks into the event stream: logging, and metrics for OpenTelemetry.

Each change of a run writes an event into the journal, in the same transaction. Whoever is given
to ``BatchRunner(listeners=[...])`` is told of those that this process commits. Events hold counts,
ids, states and a provider's error messages; no key, no prompt and no answer is ever in them.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from batchor_core.errors import ConfigurationError
from batchor_core.model.records import Event, InFlight
from batchor_core.store.protocol import Store

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

logger = logging.getLogger(__name__)

_TOKEN_TYPES = {
    "input": "input_tokens",
    "cached_input": "cached_input_tokens",
    "output": "output_tokens",
    "reasoning": "reasoning_tokens",
}
_BATCH_EVENTS = {
    "submission.activated": "created",
    "submission.voided": "voided",
    "submission.collected": "collected",
}


class EventListener(Protocol):
    """Somebody who wants to know what happens to runs.

    Called in the thread that wrote the event, right after its commit: be quick, and expect several
    threads. What it raises is logged and goes no further. Each event is told to one process only,
    the one that committed it, and to none if that dies in between; the journal
    (``Store.list_events``) has them all.
    """

    def on_event(self, event: Event) -> None:
        """Take notice of one event; ``docs/events.md`` lists the kinds."""
        ...


class Notifier:
    """Tells listeners of events, whatever they raise."""

    def __init__(self, listeners: Iterable[EventListener]) -> None:
        self._listeners = tuple(listeners)

    def __call__(self, event: Event) -> None:
        """Tell each listener of one event."""
        for listener in self._listeners:
            try:
                listener.on_event(event)
            except Exception:  # a user's code; a run must not end by who watches it
                name = type(listener).__name__
                logger.exception("run %s: %s failed on %s", event.run_id, name, event.kind)


class LoggingListener:
    """Logs each event as one line, with the event's fields as ``extra``.

    Args:
        logger: Where to; default: ``batchor_core.events``.
        level: Of all of them.
    """

    def __init__(self, logger: logging.Logger | None = None, *, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("batchor_core.events")
        self._level = level

    def on_event(self, event: Event) -> None:
        """Log it."""
        details = " ".join(f"{key}={value!s}" for key, value in event.data.items())
        extra = {
            "batchor_run_id": event.run_id,
            "batchor_kind": event.kind,
            "batchor_sequence": event.sequence,
            "batchor_data": dict(event.data),
        }
        line = "run %s: %s %s"
        self._logger.log(self._level, line, event.run_id, event.kind, details, extra=extra)


class OpenTelemetryListener:
    """Counts items, tokens, cost and batches with OpenTelemetry.

    ``batchor.items`` by ``verdict`` (``ok``, ``failed``, ``retry``) and ``reused``;
    ``batchor.tokens`` by ``type``; ``batchor.cost`` in US dollars, of known prices only;
    ``batchor.batches`` by ``event`` (``created``, ``adopted``, ``voided``, ``collected``);
    ``batchor.runs.finished`` by ``state``. What is in flight is read from the store at each
    export, see ``observe``.

    Args:
        meter: Where to; default: the global meter provider's.

    Raises:
        ConfigurationError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, meter: "Meter | None" = None) -> None:
        self._meter = meter or _global_meter()
        self._items = self._meter.create_counter("batchor.items", unit="{item}")
        self._tokens = self._meter.create_counter("batchor.tokens", unit="{token}")
        self._cost = self._meter.create_counter("batchor.cost", unit="USD")
        self._batches = self._meter.create_counter("batchor.batches", unit="{batch}")
        self._runs = self._meter.create_counter("batchor.runs.finished", unit="{run}")

    def observe(self, store: Store, namespace: str | None = None) -> None:
        """Offer ``batchor.items.in_flight`` and ``batchor.batches.in_flight`` as gauges.

        They say the same in every process on this store: take one, do not add them up.
        """

        def gauge(name: str, unit: str, read: Callable[[InFlight], int]) -> None:
            def callback(_: "CallbackOptions") -> "Sequence[Observation]":
                from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

                return [Observation(read(store.in_flight(namespace)))]

            self._meter.create_observable_gauge(name, callbacks=[callback], unit=unit)

        gauge("batchor.items.in_flight", "{item}", lambda now: now.items)
        gauge("batchor.batches.in_flight", "{batch}", lambda now: now.batches)

    def on_event(self, event: Event) -> None:
        """Count it."""
        data = event.data
        if event.kind in {"submission.collected", "answers.reused"}:
            self._count_outcomes(data)
        elif event.kind == "chunk.abandoned":
            self._add_items(data["item_count"], "failed")
        elif event.kind == "run.closed":
            self._add_items(data["unanswered"], "failed")
            self._runs.add(1, {"state": str(data["state"])})
        what = _BATCH_EVENTS.get(event.kind)
        if what is not None:
            self._batches.add(1, {"event": "adopted" if data.get("adopted") else what})

    def _count_outcomes(self, data: Any) -> None:
        reused = data["reused_count"]
        self._add_items(data["ok_count"] - reused, "ok")
        self._add_items(reused, "ok", reused=True)
        self._add_items(data["failed_count"], "failed")
        self._add_items(data["retry_count"], "retry")
        for name, column in _TOKEN_TYPES.items():
            if data[column]:
                self._tokens.add(data[column], {"type": name})
        if data["cost_usd"]:
            self._cost.add(data["cost_usd"])

    def _add_items(self, count: int, verdict: str, *, reused: bool = False) -> None:
        if count:
            self._items.add(count, {"verdict": verdict, "reused": reused})


def _global_meter() -> "Meter":
    try:
        from opentelemetry.metrics import get_meter  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise ConfigurationError(
            "metrics need opentelemetry-api: pip install 'batchor-dagster[otel]'"
        ) from exc
    return get_meter("batchor")
