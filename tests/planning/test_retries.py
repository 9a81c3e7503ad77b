"""What becomes of an answer, and how long to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.model.policies import RetryPolicy
from batchor_core.model.states import Verdict
from batchor_core.planning.retries import backoff_s, judge

POLICY = RetryPolicy(
    max_attempts=3, max_invalid_attempts=2, max_rounds=4, delay_s=10, max_delay_s=60
)


def fault(*, again: bool = True, paid: bool = True, code: str = "server_error") -> ItemFault:
    """What is wrong with an answer."""
    return ItemFault(code=code, message="", retryable=again, consumes_attempt=paid)


def test_a_good_answer_is_ok_and_counts_as_an_attempt() -> None:
    """The number of tries shown would be one too low."""
    judged = judge(None, attempts=1, round_=3, policy=POLICY)
    assert (judged.verdict, judged.attempts) == (Verdict.OK, 2)


@pytest.mark.parametrize(
    ("given_fault", "attempts", "round_", "verdict", "used"),
    [
        (fault(), 0, 0, Verdict.RETRY, 1),
        (fault(), 1, 1, Verdict.RETRY, 2),
        (fault(), 2, 2, Verdict.FAILED, 3),
        (fault(paid=False), 0, 0, Verdict.RETRY, 0),
        (fault(paid=False), 2, 2, Verdict.RETRY, 2),
        (fault(paid=False), 0, 3, Verdict.FAILED, 0),
        (fault(again=False), 0, 0, Verdict.FAILED, 1),
        (fault(again=False, paid=False), 0, 0, Verdict.FAILED, 0),
        (fault(code=ItemErrorCode.INVALID_OUTPUT), 0, 0, Verdict.RETRY, 1),
        (fault(code=ItemErrorCode.INVALID_OUTPUT), 1, 1, Verdict.FAILED, 2),
    ],
)
def test_verdicts(
    given_fault: ItemFault, attempts: int, round_: int, verdict: Verdict, used: int
) -> None:
    """Rows would be given up too early, or paid for without end."""
    judged = judge(given_fault, attempts=attempts, round_=round_, policy=POLICY)
    assert (judged.verdict, judged.attempts) == (verdict, used)


@given(
    st.booleans(),
    st.lists(st.booleans(), min_size=1, max_size=100),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_every_row_comes_to_an_end(
    again: bool, paid: list[bool], max_attempts: int, max_rounds: int
) -> None:
    """A row would be sent for ever."""
    policy = RetryPolicy(max_attempts=max_attempts, max_rounds=max_rounds)
    attempts, round_ = 0, 0
    while True:
        each = fault(again=again, paid=paid[round_ % len(paid)])
        judged = judge(each, attempts=attempts, round_=round_, policy=policy)
        attempts = judged.attempts
        assert attempts <= max_attempts
        if judged.verdict is Verdict.FAILED:
            break
        round_ += 1
        assert round_ < max_rounds


@given(st.integers(0, 10_000), st.none() | st.floats(0, 3600))
def test_waiting_grows_up_to_a_bound_and_never_below_what_is_asked(
    tries: int, asked: float | None
) -> None:
    """A provider in trouble would be hammered, or a run sleep for days."""
    wait = backoff_s(tries, policy=POLICY, asked_s=asked)
    floor = max(min(10 * 2.0 ** min(tries, 30), 60), asked or 0)
    assert floor <= wait <= floor * 1.1
