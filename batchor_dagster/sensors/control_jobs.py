"""Op jobs by which users pause, resume and cancel batch runs from Dagster's UI.

The jobs change the store alone and need no provider. The advance sensor does the rest, as it does
for the same commands of the command line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import dagster as dg
from pydantic import Field

from batchor_core import (
    BatchorError,
    BatchRunner,
    BudgetPolicy,
    RunControlState,
    RunState,
)
from batchor_core.integration import (
    Identity,
    OrchestratorStore,
    RunRecord,
    WaiterState,
    change_budget,
)
from batchor_dagster.constants import (
    CANCEL_JOB,
    META_CONTROLLED,
    META_CONTROLLED_COUNT,
    PAUSE_JOB,
    RESUME_JOB,
    TAG_KIND,
    RunKind,
)
from batchor_dagster.resources.connections import BATCHOR_RESOURCE, location_of, open_runner

_SHOWN_BATCH_RUNS = 200
_SHOWN_PARTITIONS = 10
_DRY = "is selected (dry run: nothing is changed)"
_OPEN_STATES = tuple(state for state in RunState if not state.is_terminal)


class ControlConfig(dg.Config):
    """Selects batch runs of the code location: those that match every field that is given."""

    asset: str | None = Field(
        default=None,
        description="Select batch runs of this batch asset, as its key is written: a or a/b.",
    )
    partitions: list[str] = Field(
        default_factory=list, description="Select batch runs with one of these partitions."
    )
    batch_runs: list[str] = Field(default_factory=list, description="Select by these ids.")
    paused_because: str | None = Field(
        default=None,
        description="Select paused batch runs whose reason contains this text, as 'budget'.",
    )
    everything: bool = Field(
        default=False, description="Select all batch runs of the code location in progress."
    )
    dry_run: bool = Field(default=False, description="List the selected ones, change nothing.")


class PauseConfig(ControlConfig):
    """Selects the batch runs to pause, and gives the reason."""

    reason: str = Field(
        default="paused by hand", description="Shown at the partitions that wait for them."
    )


class ResumeConfig(ControlConfig):
    """Selects the batch runs to resume, and gives their budgets."""

    budget_usd: float | None = Field(
        default=None,
        description="New budget of each batch run as a whole, in US dollars; needed if it is "
        "paused for its budget.",
    )
    budget_usd_per_day: float | None = Field(
        default=None, description="New budget of their account and model per day (UTC)."
    )


class CancelConfig(ControlConfig):
    """Selects the batch runs to cancel, and gives the reason."""

    reason: str = Field(
        default="cancelled by hand", description="The reason with which their requests end."
    )


def build_control_jobs() -> list[dg.JobDefinition]:
    """Return the jobs ``batchor_pause``, ``batchor_resume`` and ``batchor_cancel``.

    ``build_batch_sensors`` adds them to a code location. They change batch runs of its namespace
    only, and require only the resource ``batchor``.
    """

    @dg.op(required_resource_keys={BATCHOR_RESOURCE})
    def pause(context: dg.OpExecutionContext, config: PauseConfig) -> None:
        def ask(store: OrchestratorStore, run: RunRecord) -> str:
            if run.control is RunControlState.PAUSE:
                return "is paused already"
            store.set_control(run.run_id, RunControlState.PAUSE, config.reason)
            return "is paused: what is in flight is still collected"

        _control(context, config, _of_each(ask))

    @dg.op(required_resource_keys={BATCHOR_RESOURCE})
    def resume(context: dg.OpExecutionContext, config: ResumeConfig) -> None:
        budget = _budget(config)

        def ask(store: OrchestratorStore, run: RunRecord) -> str:
            if run.control is not RunControlState.PAUSE:
                return "is not paused"
            change_budget(store, run, budget)
            store.set_control(run.run_id, RunControlState.RUN, None)
            return "goes on"

        _control(context, config, _of_each(ask))

    @dg.op(required_resource_keys={BATCHOR_RESOURCE})
    def cancel(context: dg.OpExecutionContext, config: CancelConfig) -> None:
        def ask(store: OrchestratorStore, run: RunRecord) -> str:
            return _cancel(store, run, config.reason)

        _control(context, config, _of_whole_ones(ask))

    return [
        _job(
            PAUSE_JOB, pause, "Pauses batch runs: sends nothing more, collects what is in flight."
        ),
        _job(RESUME_JOB, resume, "Resumes paused batch runs, with a new budget if need be."),
        _job(CANCEL_JOB, cancel, "Cancels batch runs for good, and ends the requests that wait."),
    ]


def _job(name: str, op: Callable[[], Any], description: str) -> dg.JobDefinition:
    @dg.job(
        name=name,
        tags={TAG_KIND: RunKind.CONTROL.value},
        description=description,
    )
    def job() -> None:
        op()

    return job


@dataclass(frozen=True, kw_only=True)
class _Selected:
    """A batch run that a configuration selects.

    Attributes:
        identities: The asset and partitions that it answers.
        is_whole: Whether the configuration selects all of these partitions.
    """

    run: RunRecord
    identities: Sequence[Identity]
    is_whole: bool


_Ask: TypeAlias = Callable[[OrchestratorStore, _Selected], str]
"""Pauses, resumes or cancels a batch run; returns the outcome as the rest of a sentence."""


def _of_each(ask: Callable[[OrchestratorStore, RunRecord], str]) -> _Ask:
    """Apply ``ask`` to each selected batch run."""
    return lambda store, one: ask(store, one.run)


def _of_whole_ones(ask: Callable[[OrchestratorStore, RunRecord], str]) -> _Ask:
    """Apply ``ask`` only to batch runs of which every partition is selected."""

    def of_one(store: OrchestratorStore, one: _Selected) -> str:
        if one.is_whole:
            return ask(store, one.run)
        return "is left alone: it holds other partitions as well; select them, or it by its id"

    return of_one


def _control(context: dg.OpExecutionContext, config: ControlConfig, ask: _Ask) -> None:
    """Apply ``ask`` to the selected batch runs; log the outcomes and add them as a table.

    Raises:
        dagster.Failure: The configuration selects nothing, no batch run matches, or ``ask`` failed
            for one of them.
    """
    _check(config)
    failed: list[str] = []
    told: list[tuple[_Selected, str]] = []
    with open_runner(context.resources, location_of(context.run)) as runner:
        for one in list(_selected(runner, config)):
            try:
                became = _DRY if config.dry_run else ask(runner.store, one)
            except BatchorError as exc:
                failed.append(one.run.run_id)
                became = f"is as it was: {exc}"
            context.log.info("batch run %s %s", one.run.run_id, became)
            told.append((one, became))
        namespace = runner.namespace
    if not told:
        raise _refused(
            f"no batch run in progress in the namespace {namespace!r} is selected: launch the job "
            "with dry_run and everything to see which there are"
        )
    context.add_output_metadata(_table(told))
    if failed:
        raise _refused(f"not done for {', '.join(failed)}; the log says why")


def _check(config: ControlConfig) -> None:
    selects = (config.asset, config.partitions, config.batch_runs, config.paused_because)
    if not any(selects) and not config.everything:
        raise _refused(
            "nothing is selected: give asset, partitions, batch_runs or paused_because in the run "
            "configuration, or everything: true"
        )
    if any(selects) and config.everything:
        raise _refused("everything: true is given beside a selection: give one of them")
    if config.partitions and config.asset is None:
        raise _refused("partitions are given without their asset: give asset as well")


def _selected(runner: BatchRunner, config: ControlConfig) -> Iterator[_Selected]:
    """Yield the selected batch runs in progress, oldest first.

    A batch run that holds no partitions (any more) can be selected by its id only.
    """
    store, ids, because = runner.store, set(config.batch_runs), config.paused_because
    for run in reversed(store.list_runs(namespace=runner.namespace, states=_OPEN_STATES)):
        if ids and run.run_id not in ids:
            continue
        if because is not None and not _is_paused_because(run, because):
            continue
        identities = [member.identity for member in store.list_members(run.run_id)]
        wanted = [one for one in identities if _is_wanted(one, config)]
        if wanted or (run.run_id in ids and config.asset is None):
            is_whole = len(wanted) == len(identities) or run.run_id in ids
            yield _Selected(run=run, identities=identities, is_whole=is_whole)


def _is_paused_because(run: RunRecord, text: str) -> bool:
    reason = run.control_reason or ""
    return run.control is RunControlState.PAUSE and text.casefold() in reason.casefold()


def _is_wanted(identity: Identity, config: ControlConfig) -> bool:
    if config.asset is not None and identity.asset != config.asset:
        return False
    return not config.partitions or identity.partition in config.partitions


def _cancel(store: OrchestratorStore, run: RunRecord, reason: str) -> str:
    waiters = store.list_waiters(run_id=run.run_id, states=[WaiterState.OPEN])
    for waiter in waiters:
        store.end_waiter(waiter.waiter_id, WaiterState.CANCELLED, reason)
    store.set_control(run.run_id, RunControlState.CANCEL, reason)  # also if it has no waiter
    return f"is cancelled, with {len(waiters)} waiting request(s)"


def _budget(config: ResumeConfig) -> BudgetPolicy:
    try:
        return BudgetPolicy(run_usd=config.budget_usd, scope_day_usd=config.budget_usd_per_day)
    except ValueError as exc:
        raise _refused("budgets are US dollars, more than 0") from exc


def _table(told: Sequence[tuple[_Selected, str]]) -> dict[str, Any]:
    records = [
        dg.TableRecord(
            {
                "batch_run": one.run.run_id,
                "asset": one.identities[0].asset if one.identities else "",
                "partitions": _shown([identity.partition for identity in one.identities]),
                "was": _was(one.run),
                "outcome": became,
            }
        )
        for one, became in told[:_SHOWN_BATCH_RUNS]
    ]
    return {
        META_CONTROLLED_COUNT: len(told),
        META_CONTROLLED: dg.MetadataValue.table(
            records=records,
            schema=dg.TableSchema(
                columns=[dg.TableColumn(name, "string") for name in records[0].data]
            ),
        ),
    }


def _was(run: RunRecord) -> str:
    if run.control is RunControlState.RUN:
        return run.state.value
    return f"{run.state.value} ({run.control.value}: {run.control_reason})"


def _shown(partitions: Sequence[str]) -> str:
    text = ", ".join(partitions[:_SHOWN_PARTITIONS])
    more = len(partitions) - _SHOWN_PARTITIONS
    return f"{text} and {more} more" if more > 0 else text


def _refused(description: str) -> dg.Failure:
    return dg.Failure(description=description, allow_retries=False)
