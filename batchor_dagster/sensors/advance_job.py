"""The job ``batchor_advance``: collects, retries, submits and finishes for some batch runs."""

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from batchor_core import BatchRunner, ConfigurationError, Run, RunControlState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.constants import ADVANCE_JOB, TAG_KIND, RunKind
from batchor_dagster.resources.connections import BATCHOR_RESOURCE, location_of, open_runner
from batchor_dagster.sensors.progress_news import news_of
from batchor_dagster.waiting.time_box import TimeBox

ADVANCE_OP = "advance"
ADVANCE_SECONDS = 300.0
"""Time for all batch runs of one Dagster run together; the next one does what is left."""
TURN_SECONDS = 30.0
"""Time of one batch run's turn, after which the others of the Dagster run have theirs."""
UNUSABLE = "cannot be advanced by this code location"
"""Why a batch run is paused whose output model or provider's resource is missing. Stored: the
sensor leaves such a batch run alone until a user resumes it."""


class AdvanceConfig(dg.Config):
    """Which batch runs to advance.

    Attributes:
        batch_runs: Ids of batch runs.
    """

    batch_runs: list[str]


def build_advance_job(declarations: Iterable[BatchAssetDeclaration]) -> dg.JobDefinition:
    """Return the job ``batchor_advance``, an op job: it loads no inputs and has no partitions.

    Args:
        declarations: The batch assets whose accounts the job requires. It takes other accounts
            from the code location's resources when it needs them.
    """
    resource_keys = {BATCHOR_RESOURCE, *(d.provider for d in declarations)}

    def advance(context: dg.OpExecutionContext, config: AdvanceConfig) -> None:
        location, others = location_of(context.run), context.job_def.resource_defs
        with open_runner(context.resources, location, others) as runner:
            failed = _Turns(context, runner).take(config.batch_runs)
        if failed:
            raise dg.Failure(
                description=f"could not advance {', '.join(failed)}; the sensor tries again, "
                "after a while that grows",
                allow_retries=False,
            )

    # Dagster takes an annotated None for an output: that would need the project's IO manager and
    # its configuration, which a sensor cannot give.
    del advance.__annotations__["return"]
    op = dg.op(name=ADVANCE_OP, required_resource_keys=resource_keys, out={})(advance)

    @dg.job(
        name=ADVANCE_JOB,
        tags={TAG_KIND: RunKind.ADVANCE.value},
        description="Collects, retries and submits for batch runs; the advance sensor launches it.",
    )
    def advance_job() -> None:
        op()

    return advance_job


def run_config(batch_runs: list[str]) -> dict[str, Any]:
    """Return the job's run configuration for some batch runs."""
    return {"ops": {ADVANCE_OP: {"config": {"batch_runs": batch_runs}}}}


class _Turns:
    """Advances batch runs in turns, so that none of them holds up the others.

    Args:
        context: The op's.
        runner: Opens the batch runs.
    """

    def __init__(self, context: dg.OpExecutionContext, runner: BatchRunner) -> None:
        self._context = context
        self._runner = runner
        self._runs: dict[str, Run] = {}
        self._failed: list[str] = []

    def take(self, run_ids: Sequence[str]) -> list[str]:
        """Give each batch run a turn, then further turns while it has work and there is time.

        Returns:
            The batch runs that failed.
        """
        turn_s = min(TURN_SECONDS, ADVANCE_SECONDS / max(len(run_ids), 1))
        time_box = TimeBox(ADVANCE_SECONDS)
        waiting = [run_id for run_id in run_ids if self._turn(run_id, turn_s)]
        while waiting and not time_box.is_over:
            run_id = waiting.pop(0)
            if self._turn(run_id, turn_s):
                waiting.append(run_id)
        if waiting:
            self._context.log.info("left for the next Dagster run: %s", ", ".join(waiting))
        return self._failed

    def _turn(self, run_id: str, seconds: float) -> bool:
        """Advance one batch run for some seconds; return whether it may have more to do."""
        log = self._context.log
        try:
            return self._advance(run_id, seconds)
        except ConfigurationError as exc:
            reason = f"{UNUSABLE}: {exc}"
            log.warning("batch run %s is paused: %s", run_id, reason)
            self._runner.store.set_control(run_id, RunControlState.PAUSE, reason)
        except Exception:  # the one boundary: the other batch runs go on
            log.exception("batch run %s cannot be advanced", run_id)
        self._failed.append(run_id)
        return False

    def _advance(self, run_id: str, seconds: float) -> bool:
        store = self._runner.store
        # Counted as a failure first, and taken back on success: this process may be killed here.
        store.begin_advance(run_id)
        if run_id not in self._runs:
            self._runs[run_id] = self._runner.get_run(run_id)
        run = self._runs[run_id]
        did = run.advance(seconds).did
        store.end_advance(run_id)
        self._context.log.info("batch run %s: %s", run_id, ", ".join(did) or "nothing was due")
        if did:
            for observation in news_of(self._context.instance, self._runner, run):
                self._context.log_event(observation)
        return bool(did) and not run.is_finished
