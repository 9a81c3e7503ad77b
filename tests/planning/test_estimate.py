"""What a job comes to, from counts alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.records import ScopeLimits
from batchor_core.planning.chunking import ChunkLimits
from batchor_core.planning.estimate import (
    Estimate,
    Packing,
    Parcel,
    Pricing,
    estimate_of,
)
from batchor_core.planning.prices import Price, exceeds, usd

PRICE = Price(input_usd=1.0, cached_input_usd=0.5, output_usd=4.0, realtime_factor=2.0)
UNLIMITED = ScopeLimits()


def pricing(**changes: Any) -> Pricing:
    """A dollar for a million input tokens, four for output."""
    values: dict[str, Any] = {
        "price": PRICE,
        "source": "stated",
        "assumed_output_tokens": 500,
        "output_token_bound": None,
        "is_sampled": True,
    }
    return Pricing(**values | changes)


def estimate(*tokens: int, queue: ScopeLimits = UNLIMITED, **changes: Any) -> Estimate:
    """The estimate of chunks of ten rows with so many tokens each."""
    parcels = [Parcel(requests=10, size_bytes=100, tokens=count) for count in tokens]
    return estimate_of(parcels, pricing(**changes), queue)


def test_bounded_answers_give_a_range() -> None:
    """A budget would be compared with what the answers are hoped to be."""
    found = estimate(600_000, 500_000, output_token_bound=1_000)
    assert (found.rows, found.size_bytes, found.chunks) == (20, 200, 2)
    assert (found.input_tokens, found.output_tokens) == (1_100_000, 10_000)
    assert found.max_output_tokens == 20_000
    assert found.low_usd == pytest.approx(1.0)
    assert found.expected_usd == pytest.approx(1.1 + 0.04)
    assert found.high_usd == found.reserved_usd == pytest.approx(1.1 + 0.08)
    assert found.realtime_usd == pytest.approx(2.28)
    assert found.saving_usd == pytest.approx(1.14)


def test_unbounded_answers_have_no_upper_end() -> None:
    """An upper bound would be shown that nothing holds."""
    found = estimate(1_000)
    assert (found.max_output_tokens, found.high_usd) == (None, None)
    assert found.reserved_usd == found.expected_usd == pytest.approx(0.001 + 0.02)


def test_a_bound_below_what_is_assumed_is_what_is_assumed() -> None:
    """The expected cost would exceed the highest possible one."""
    found = estimate(1_000, output_token_bound=0)  # embeddings
    assert (found.output_tokens, found.max_output_tokens) == (0, 0)
    assert found.expected_usd == found.high_usd == pytest.approx(0.001)


def test_unknown_price_is_unknown_not_nothing() -> None:
    """A model that nobody knows the price of would look free."""
    found = estimate(1_000, price=None, source=None, output_token_bound=10)
    dollars = ("low_usd", "expected_usd", "high_usd", "reserved_usd", "realtime_usd", "saving_usd")
    assert [getattr(found, name) for name in dollars] == [None] * 6
    assert (found.price_source, found.input_tokens) == (None, 1_000)


def test_tokens_from_bytes_are_less_certain() -> None:
    """An estimate without a vocabulary would look as good as one with it."""
    sampled, guessed = estimate(1_000_000), estimate(1_000_000, is_sampled=False)
    assert guessed.low_usd is not None
    assert sampled.low_usd is not None
    assert guessed.low_usd < sampled.low_usd < 1.0


@pytest.mark.parametrize(
    ("queue", "batches", "rounds", "hours"),
    [
        ({}, 2, None, None),
        ({"max_tokens": 10_000}, 2, 1, 24),
        ({"max_tokens": 5_000}, 2, 2, 48),
        ({"max_tokens": 4_999}, 3, 2, 48),  # the larger chunk is halved
        ({"max_tokens": 1_000}, 12, 8, 192),
        ({"max_requests": 5}, 4, 4, 96),
        ({"max_batches": 1}, 2, 2, 48),
        ({"max_tokens": 10_000, "max_batches": 1}, 2, 2, 48),
        ({"max_tokens": 1}, 20, 8_000, 192_000),  # one request each: it goes alone
    ],
)
def test_queue_limits_give_rounds(
    queue: dict[str, int], batches: int, rounds: int | None, hours: int | None
) -> None:
    """A run of days would be announced as one of hours, or a time be made up without a limit."""
    found = estimate(5_000, 3_000, queue=ScopeLimits(**queue))
    assert (found.provider_batches, found.queue_rounds, found.longest_h) == (batches, rounds, hours)


def test_no_rows_cost_nothing() -> None:
    """An empty input would crash the estimate."""
    found = estimate(queue=ScopeLimits(max_tokens=10))
    assert (found.rows, found.chunks, found.provider_batches, found.queue_rounds) == (0, 0, 0, 0)
    assert found.expected_usd == 0.0


@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 50)), max_size=60),
    requests=st.integers(1, 7),
    size=st.integers(10, 120),
    tokens=st.none() | st.integers(10, 120),
)
def test_packing_loses_no_row_and_keeps_the_limits(
    rows: list[tuple[int, float]], requests: int, size: int, tokens: int | None
) -> None:
    """The number of batches would be another than that of the run."""
    packing = Packing(ChunkLimits(max_requests=requests, max_bytes=size, max_tokens=tokens))
    for size_bytes, count in rows:
        packing.add(size_bytes, count)
    found = packing.parcels()
    assert sum(parcel.requests for parcel in found) == len(rows)
    assert sum(parcel.size_bytes for parcel in found) == sum(size_bytes for size_bytes, _ in rows)
    assert sum(parcel.tokens for parcel in found) == sum(int(count) + 1 for _, count in rows)
    for parcel in found:
        assert 1 <= parcel.requests <= requests
        assert parcel.requests == 1 or parcel.size_bytes <= size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (5, "$5.00"),
        (1234.5, "$1,234.50"),
        (0.000012, "$0.000012"),
        (1.0004, "$1.0004"),
        (100, "$100.00"),
    ],
)
def test_amounts_are_shown_to_the_micro_dollar(amount: float, text: str) -> None:
    """A small cost would be shown as nothing, or a budget as equal to what exceeds it."""
    assert usd(amount) == text


def test_an_amount_that_reads_the_same_does_not_exceed() -> None:
    """A budget copied from an estimate would be too small by a rounding error."""
    assert not exceeds(0.1 + 0.2, 0.3)
    assert not exceeds(0.0000014, 0.000001)
    assert exceeds(0.000002, 0.000001)
