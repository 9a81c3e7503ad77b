"""The op job that does what is too heavy for a sensor: collect, retry, submit, finish."""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from batchor_core import BatchorError, BatchRunner, ConfigurationError, Run, RunControlState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.metadata import observations, progress_metadata
from batchor_dagster.constants import ADVANCE_JOB, TAG_KIND, RunKind
from batchor_dagster.resources.connections import BATCHOR_RESOURCE, location_of, open_runner

ADVANCE_OP = "advance"
ADVANCE_SECONDS = 600.0
"""Time for one batch run in one Dagster run; what is left is for the next."""
UNUSABLE = "cannot be advanced by this code location"
"""Why a run is paused whose output model or provider's resource is missing. Stored: the sensor
leaves such a run alone until somebody resumes it."""


class AdvanceConfig(dg.Config):
    """Which batch runs to advance.

    Attributes:
        batch_runs: Ids of batch runs.
    """

    batch_runs: list[str]


def build_advance_job(declarations: Iterable[BatchAssetDeclaration]) -> dg.JobDefinition:
    """Return the job; it is no asset run, so it loads no inputs and disturbs no partition.

    Args:
        declarations: Of the assets whose providers are known; other accounts are looked for among
            the code location's resources.
    """
    resource_keys = {BATCHOR_RESOURCE, *(d.provider for d in declarations)}

    @dg.op(name=ADVANCE_OP, required_resource_keys=resource_keys)
    def advance(context: dg.OpExecutionContext, config: AdvanceConfig) -> None:
        location, others = location_of(context.run), context.job_def.resource_defs
        with open_runner(context.resources, location, others) as runner:
            failed = [
                run_id for run_id in config.batch_runs if not _advance(context, runner, run_id)
            ]
        if failed:
            raise dg.Failure(
                description=f"could not advance {', '.join(failed)}; the sensor tries again",
                allow_retries=False,
            )

    @dg.job(
        name=ADVANCE_JOB,
        tags={TAG_KIND: RunKind.ADVANCE.value},
        description="Collects, retries and submits for batch runs that wait; launched by a sensor.",
    )
    def advance_job() -> None:
        advance()

    return advance_job


def run_config(batch_runs: list[str]) -> dict[str, Any]:
    """Return the job's run config for some batch runs."""
    return {"ops": {ADVANCE_OP: {"config": {"batch_runs": batch_runs}}}}


def _advance(context: dg.OpExecutionContext, runner: BatchRunner, run_id: str) -> bool:
    """Advance one batch run as far as it goes; False if it failed, which harms no other."""
    try:
        run = runner.get_run(run_id)
        did = _drive(run)
        context.log.info("batch run %s: %s", run_id, ", ".join(did) or "nothing was due")
        if did:
            _observe(context, runner, run)
    except ConfigurationError as exc:
        reason = f"{UNUSABLE}: {exc}"
        context.log.warning("batch run %s is paused: %s", run_id, reason)
        runner.store.set_control(run_id, RunControlState.PAUSE, reason)
        return False
    except BatchorError:
        context.log.exception("batch run %s cannot be advanced", run_id)
        return False
    return True


def _drive(run: Run) -> list[str]:
    did: list[str] = []
    while not run.is_finished:
        progress = run.advance(ADVANCE_SECONDS)
        did += progress.did
        if not progress.did:
            break
    return did


def _observe(context: dg.OpExecutionContext, runner: BatchRunner, run: Run) -> None:
    members = runner.store.list_members(run.run_id)
    identities = [member.identity for member in members if member.is_open]
    if not identities:
        return
    key = dg.AssetKey.from_user_string(identities[0].asset)
    partitions = [identity.partition for identity in identities]
    for observation in observations(key, partitions, progress_metadata(run.summary(), run)):
        context.log_event(observation)
