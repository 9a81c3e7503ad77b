"""Settling intents: was a provider batch created, or not? Nothing is sent again before we know."""

import logging
from datetime import datetime, timedelta

from batchor_core.errors import ProviderError
from batchor_core.executor.accounts import pause_for_account, sees_account_of
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.remote_files import remove_remote_files
from batchor_core.executor.sweep import first_sweep
from batchor_core.model.faults import FaultKind, ItemErrorCode
from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import SubmissionState
from batchor_core.providers.protocol import ProviderBatch, Sighting, Wanted

logger = logging.getLogger(__name__)

MOST_VANISHED = 4
"""After so many batches of one chunk that were given up, sending it again looks like a mistake."""

_VANISHED = "looked for throughout the settling time: it was never created"


def recover(cycle: Cycle) -> bool:
    """Settle what earlier cycles, of this process or of dead ones, left ``intended``.

    Runs before anything is submitted, under the lease: whatever is still ``intended`` now has no
    living call behind it, or one that ends within the lease it started under.

    Returns:
        Whether a submission was settled.
    """
    did = False
    states = [SubmissionState.INTENDED]
    for submission in cycle.store.list_submissions(cycle.run.run_id, states=states):
        if cycle.is_over:
            break
        did |= _settle(cycle, submission)
        cycle.keeper.keep()
    return did


def settled_at(submission: SubmissionRecord, settle_s: float) -> datetime | None:
    """Return when the settling time is over by our clock; None where nothing can have happened."""
    end = submission.create_ended_at or submission.create_allowed_until
    return end + timedelta(seconds=settle_s) if end else None


def _settle(cycle: Cycle, submission: SubmissionRecord) -> bool:
    if submission.create_allowed_until is None:
        _give_up(cycle, submission, "the process died before the create call")
        return True
    try:
        sighting = cycle.plan.provider.find(Wanted.of(submission))
    except ProviderError as exc:
        if exc.fault.kind is FaultKind.ACCOUNT:
            cycle.pause(f"{exc.fault.code}: {exc.fault.message}")
        logger.warning("run %s: cannot look for a batch yet: %s", cycle.run.run_id, exc)
        return _cannot_be_settled(cycle, submission)
    return _conclude(cycle, submission, sighting)


def _conclude(cycle: Cycle, submission: SubmissionRecord, sighting: Sighting) -> bool:
    """Do what a look that succeeded asks for: adopt, wait, or give up."""
    if sighting.matches:
        return _adopt(cycle, submission, sighting)
    if not _is_settled(cycle, submission, sighting):
        return False
    if not sees_account_of(cycle.store, cycle.plan.provider, submission):
        pause_for_account(cycle.store, submission)
        return False
    suspects, is_contested = _suspects(cycle, sighting)
    if len(suspects) > 1 or is_contested:
        logger.info(
            "run %s: several batches, or one that another run has taken on suspicion, may be the "
            "one of %s: waiting for their results",
            cycle.run.run_id,
            submission.submission_id,
        )
        return _cannot_be_settled(cycle, submission)
    if suspects:
        _activate(cycle, submission, suspects[0], is_provisional=True)
        return True
    _give_up(cycle, submission, _VANISHED)
    return True


def _cannot_be_settled(cycle: Cycle, submission: SubmissionRecord) -> bool:
    """Do what the user chose for a batch that no look could settle in time."""
    over = settled_at(submission, cycle.plan.job.timing.settle_s)
    if over is None or cycle.clock.now() < over:
        return False
    choice = cycle.plan.job.on_unresolved
    if choice == "resubmit":
        _give_up(cycle, submission, "could not be looked for; sent again, as on_unresolved says")
        return True
    if choice == "fail":
        message = "nobody can tell whether its batch was created, and on_unresolved is 'fail'"
        reason = "could not be looked for; failed, as on_unresolved says"
        _give_up(cycle, submission, reason, abandon=(ItemErrorCode.UNRESOLVED, message))
        return True
    return False


def _adopt(cycle: Cycle, submission: SubmissionRecord, sighting: Sighting) -> bool:
    """Take the oldest match as ours; an exact twin is cancelled, since nobody would collect it.

    Twins go first: once the submission is active, nobody looks for them again.
    """
    batch, *twins = sorted(sighting.matches, key=_age)
    for twin in twins:
        logger.warning("run %s: cancelling twin batch %s", cycle.run.run_id, twin.batch_id)
        try:
            cycle.plan.provider.cancel(twin.batch_id)
        except ProviderError as exc:
            logger.warning("batch %s is not cancelled yet: %s", twin.batch_id, exc)
            return False
    _activate(cycle, submission, batch, is_provisional=False)
    return True


def _suspects(cycle: Cycle, sighting: Sighting) -> tuple[list[ProviderBatch], bool]:
    """Return the batches that may be the one looked for, and whether there are contested ones.

    What another submission owns is not it, unless that one has it on suspicion as well.
    """
    ids = [batch.batch_id for batch in sighting.candidates]
    known = cycle.store.known_batches(cycle.run.account, ids) if ids else {}
    free = [batch for batch in sighting.candidates if batch.batch_id not in known]
    return free, any(known.values())


def _activate(
    cycle: Cycle, submission: SubmissionRecord, batch: ProviderBatch, *, is_provisional: bool
) -> None:
    cycle.store.activate(
        cycle.lease,
        submission.submission_id,
        provider_batch_id=batch.batch_id,
        provider_status=batch.status,
        next_poll_at=cycle.clock.now(),
        adopted=True,
        is_provisional=is_provisional,
    )
    cycle.probe("recover.adopted")
    logger.info("run %s: found batch %s again", cycle.run.run_id, batch.batch_id)


def _age(batch: ProviderBatch) -> tuple[float, str]:
    created = batch.created_at.timestamp() if batch.created_at else float("inf")
    return created, batch.batch_id


def _give_up(
    cycle: Cycle,
    submission: SubmissionRecord,
    reason: str,
    abandon: tuple[str, str] | None = None,
) -> None:
    """Void a submission; unless no create can have happened, its twin is looked for later."""
    may_come = submission.create_allowed_until is not None
    cycle.store.void(
        cycle.lease,
        submission.submission_id,
        reason=reason,
        not_before=None,
        sweep_at=first_sweep(cycle.clock.now()) if may_come else None,
        abandon=abandon,
    )
    cycle.probe("recover.voided")
    remove_remote_files(cycle, upload_ref=submission.upload_ref)
    if may_come and _vanished_before(cycle, submission.chunk_seq) >= MOST_VANISHED:
        cycle.pause(
            f"creates_vanish: {MOST_VANISHED} batches for chunk {submission.chunk_seq} were never "
            "seen again after their create calls failed; look at the provider before you resume"
        )


def _vanished_before(cycle: Cycle, chunk_seq: int) -> int:
    void = cycle.store.list_submissions(cycle.run.run_id, states=[SubmissionState.VOID])
    return sum(s.chunk_seq == chunk_seq and s.sweep_at is not None for s in void)


def _is_settled(cycle: Cycle, submission: SubmissionRecord, sighting: Sighting) -> bool:
    """Whether the settling time was over when the look began.

    Instants of the provider's clock are compared with each other where both are known, so that
    neither a skewed nor a jumping clock of ours shortens the wait.
    """
    timing = cycle.plan.job.timing
    began, now = submission.create_server_time, sighting.server_time
    if began is not None and now is not None:
        longest_call_s = 0.0 if submission.create_ended_at else timing.lease_s
        # The upload was answered before the lease was renewed for the create.
        slack_s = timing.effective_create_timeout_s if submission.create_ended_at else 0.0
        wait_s = timing.settle_s + longest_call_s + slack_s
        return now - began >= timedelta(seconds=wait_s)
    ready = settled_at(submission, timing.settle_s)
    return ready is not None and cycle.clock.now() >= ready
