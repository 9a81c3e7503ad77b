"""Whether today's key is of the account that a batch was sent under.

A key of another account finds nothing: that is no proof that there is nothing.
"""

from batchor_core.errors import ProviderError
from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import RunControlState
from batchor_core.providers.protocol import BatchProvider
from batchor_core.store.protocol import Store

_WITNESSES = 3
"""So many of the newest batches that the other key has sent are asked for."""


def sees_account_of(store: Store, provider: BatchProvider, submission: SubmissionRecord) -> bool:
    """Whether "there is no such thing" can be believed of a submission.

    It can with the credential that the submission was intended under. With another one it can once
    that one has shown the submission's own batch, or another that was sent under the first.
    """
    if submission.credential == provider.credential:
        return True
    own = [submission.provider_batch_id] if submission.provider_batch_id else []
    others = store.batches_sent_under(submission.account, submission.credential, _WITNESSES)
    return any(_is_there(provider, batch_id) for batch_id in dict.fromkeys([*own, *others]))


def pause_for_account(store: Store, submission: SubmissionRecord) -> None:
    """Pause a submission's run until the key of its account is back; nothing counts as lost."""
    reason = (
        f"account_changed: submission {submission.submission_id!r} was sent with another key, and "
        "today's key does not find its batch; put the old key back and resume"
    )
    run = store.get_run(submission.run_id)
    if (run.control, run.control_reason) != (RunControlState.PAUSE, reason):
        store.set_control(run.run_id, RunControlState.PAUSE, reason)


def _is_there(provider: BatchProvider, batch_id: str) -> bool:
    try:
        provider.get(batch_id)
    except ProviderError:
        return False
    return True
