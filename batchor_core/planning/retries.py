"""What becomes of an answer, and how long to wait before the next try: pure decisions."""

import random
from dataclasses import dataclass

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.model.policies import RetryPolicy
from batchor_core.model.states import Verdict


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on one item, and the attempts it has used up with it."""

    verdict: Verdict
    attempts: int


def judge(fault: ItemFault | None, *, attempts: int, round_: int, policy: RetryPolicy) -> Judgement:
    """Decide about one answer.

    Args:
        fault: Why the answer is unusable; None when it is complete and valid.
        attempts: Executed and paid requests of the item so far that did not end ok.
        round_: The round that the answer belongs to, from 0.
        policy: The bounds.

    Returns:
        ``ok``, ``failed`` or ``retry``; ``attempts`` counts this request if it was executed.
    """
    if fault is None:
        return Judgement(verdict=Verdict.OK, attempts=attempts + 1)
    used = attempts + fault.consumes_attempt
    bound = policy.max_attempts
    if fault.code == ItemErrorCode.INVALID_OUTPUT:
        bound = min(bound, policy.max_invalid_attempts)
    again = fault.retryable and used < bound and round_ + 1 < policy.max_rounds
    return Judgement(verdict=Verdict.RETRY if again else Verdict.FAILED, attempts=used)


def backoff_s(tries: int, *, policy: RetryPolicy, asked_s: float | None = None) -> float:
    """Return the seconds to wait after ``tries`` (0 or more) earlier waits.

    Doubles from ``delay_s`` up to ``max_delay_s``; what a provider asks for is a lower bound.
    A tenth of jitter keeps processes from coming back together.
    """
    delay = min(policy.delay_s * 2.0 ** min(tries, 30), policy.max_delay_s)
    delay = max(delay, asked_s or 0.0)
    return delay * (1 + 0.1 * random.random())  # noqa: S311 - jitter, no secret
