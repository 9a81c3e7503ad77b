"""One batch of either backend: its plan in time, and how it looks at an instant."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchor_core.simulator.batch_plan import BatchPlan
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.gemini.wire import page_bounds, rfc3339, rpc_status
from batchor_core.simulator.list_faults import ListKind
from batchor_core.simulator.options import SimulatorOptions

WINDOW_S = 2 * 86_400.0
_TERMINAL = frozenset({"SUCCEEDED", "PARTIALLY_SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
_ENDINGS = {"completed": "SUCCEEDED", "expired": "EXPIRED", "cancelled": "CANCELLED"}
_WITH_RESULTS = frozenset({"SUCCEEDED", "PARTIALLY_SUCCEEDED"})


@dataclass(kw_only=True)
class GeminiBatch(BatchPlan):
    """A batch with its requests.

    Attributes:
        endpoint: ``generateContent`` or ``embedContent``.
        input_name: The file, or the address, that it was made from; None for requests in the call.
        source: Where its requests lie on disk, in either case.
        is_partial: Whether it ends as partially succeeded.
        tokens: Estimated input tokens of all requests.
        output: Where its answers are, once it was executed: a file, or entries in itself.
    """

    display_name: str
    model: str
    input_name: str | None
    in_progress_at: float
    source: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    output_prefix: str = ""
    is_partial: bool = False
    validated: bool = False
    tokens: int = 0
    completed: int = 0
    failed: int = 0
    error: dict[str, Any] | None = None
    output: dict[str, Any] = field(default_factory=dict)

    def reject(self, errors: list[dict[str, Any]]) -> None:
        """Let it fail; one error is all that it can tell."""
        self.error = rpc_status(errors[0].get("code"), str(errors[0].get("message", "")))

    def succeed_in_part(self, portion: float) -> None:
        """Let it succeed with a part of its requests."""
        self.is_partial, self.portion = True, portion

    def keep_empty_files(self) -> None:
        """Do nothing: there is one file of answers, which always has lines."""

    def is_due(self, now: float) -> bool:
        """Whether its requests are to be executed."""
        return self.validated and self.error is None and super().is_due(now)

    def state(self, now: float) -> str:
        """The state at an instant, without prefix."""
        if self.cancelling_at is not None:
            return "CANCELLED" if self.executed and now >= self.ends_at else "CANCELLING"
        if not self.validated or now < self.in_progress_at:
            return "PENDING"
        if self.error is not None:
            return "FAILED"
        if not self.executed or now < self.ends_at:
            return "RUNNING"
        ending = _ENDINGS[self.ending]
        return "PARTIALLY_SUCCEEDED" if self.is_partial and ending == "SUCCEEDED" else ending

    def status(self, now: float) -> str:
        """The state in lower case."""
        return self.state(now).lower()

    def is_terminal(self, now: float) -> bool:
        """Whether nothing can change any more."""
        return self.state(now) in _TERMINAL

    def holds_tokens(self, at: float) -> bool:
        """Whether its tokens count as enqueued at an instant."""
        return self.error is None and at < self.ends_at + self.quota_held_s

    def operation(self, now: float, clock: SimulatorClock) -> dict[str, Any]:
        """The batch as the Developer API shows it."""
        state = self.state(now)
        kind = "EmbedContentBatch" if self.endpoint == "embedContent" else "GenerateContentBatch"
        output = {"output": self.output} if state in _WITH_RESULTS and self.output else {}
        source = {"inputConfig": {"fileName": self.input_name}} if self.input_name else {}
        operation: dict[str, Any] = {
            "name": self.id,
            "metadata": {
                "@type": f"type.googleapis.com/google.ai.generativelanguage.v1.{kind}",
                "name": self.id,
                "model": f"models/{self.model}",
                "displayName": self.display_name,
                "state": f"BATCH_STATE_{state}",
                **source,
                **output,
                **self._times(state, clock),
                "batchStats": self._stats(state),
            },
        }
        if state in _TERMINAL:
            operation["done"] = True
        if state == "FAILED":
            operation["error"] = self.error
        elif output:
            operation["response"] = {"@type": f"type.googleapis.com/{kind}Output", **self.output}
        return operation

    def job(self, now: float, clock: SimulatorClock) -> dict[str, Any]:
        """The batch as Vertex AI shows it."""
        state = self.state(now)
        job: dict[str, Any] = {
            "name": self.id,
            "displayName": self.display_name,
            "model": self.model,
            "inputConfig": {
                "instancesFormat": "jsonl",
                "gcsSource": {"uris": [self.input_name]},
            },
            "outputConfig": {
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": self.output_prefix},
            },
            "state": f"JOB_STATE_{state}",
            "labels": dict(self.labels),
            **self._times(state, clock),
        }
        if state == "FAILED":
            job["error"] = self.error
        elif state in _TERMINAL and self.output:
            job["outputInfo"] = self.output
        if state in _TERMINAL:
            rest = self.total - self.completed - self.failed
            job["completionStats"] = {
                "successfulCount": str(self.completed),
                "failedCount": str(self.failed),
                "incompleteCount": str(rest),
            }
        return job

    def _times(self, state: str, clock: SimulatorClock) -> dict[str, str]:
        created = rfc3339(self.created_at, clock)
        if state not in _TERMINAL:
            return {"createTime": created, "updateTime": created}
        ended = rfc3339(self.in_progress_at if state == "FAILED" else self.ends_at, clock)
        return {"createTime": created, "updateTime": ended, "endTime": ended}

    def _stats(self, state: str) -> dict[str, str]:
        done = {"successful": self.completed, "failed": self.failed}
        if state not in _WITH_RESULTS:
            return {"requestCount": str(self.total), "pendingRequestCount": str(self.total)}
        # Counts of nothing are left out, as protobuf's JSON does; int64 are texts.
        told = {f"{name}RequestCount": str(count) for name, count in done.items() if count}
        return {"requestCount": str(self.total), **told}


def plan_batch(options: SimulatorOptions, now: float, **fields: Any) -> GeminiBatch:
    """A new batch as the options time it; one that would take over 48 hours will expire."""
    in_progress_at = now + options.validation_s
    execute_at = in_progress_at + options.working_s
    batch = GeminiBatch(
        created_at=now,
        in_progress_at=in_progress_at,
        execute_at=execute_at,
        ends_at=execute_at + options.finalizing_s,
        expires_at=now + WINDOW_S,
        visible_at=now,
        **fields,
    )
    if batch.ends_at > batch.expires_at:
        batch.ends_at = batch.expires_at
        batch.expire(min(1.0, (WINDOW_S - options.validation_s) / max(1.0, options.working_s)))
    return batch


def run_of(display_name: str) -> str:
    """The run that a submission's key names; empty for any other name."""
    parts = display_name.rsplit("/", 3)
    return parts[0] if len(parts) == 4 else ""


def shown_page(
    query: Mapping[str, str],
    batches: Sequence[GeminiBatch],
    struck: Iterable[ListKind],
    highest: int,
) -> tuple[Sequence[GeminiBatch], dict[str, str]]:
    """Return the batches on the page that a call asks for, and how the answer names the next."""
    start, end = page_bounds(query, [batch.id for batch in batches], highest)
    shown = batches[start:end]
    # The names that faults know a page's end by.
    page: dict[str, Any] = {
        "has_more": end < len(batches),
        "last_id": shown[-1].id if shown else "",
    }
    for kind in struck:
        kind.finish(page, query.get("pageToken"))
    return shown, {"nextPageToken": page["last_id"]} if page["has_more"] else {}
