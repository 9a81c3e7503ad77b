"""When a chunk is full."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.limits import ProviderLimits
from batchor_core.model.policies import ChunkPolicy
from batchor_core.planning.chunking import ChunkLimits, ChunkMeter

SMALL = st.integers(1, 50)
MAYBE = st.none() | SMALL


@given(st.lists(st.tuples(SMALL, SMALL)), SMALL, SMALL, MAYBE)
def test_chunks_stay_within_every_bound(
    rows: list[tuple[int, int]], requests: int, size: int, tokens: int | None
) -> None:
    """A chunk of several requests would exceed a bound of the provider."""
    limits = ChunkLimits(max_requests=requests, max_bytes=size, max_tokens=tokens)
    meter, chunks = ChunkMeter(limits), [[]]  # type: ignore[var-annotated]
    for row in rows:
        if not meter.fits(*row):
            chunks.append([])
            meter.reset()
        meter.add(*row)
        chunks[-1].append(row)
    assert [row for chunk in chunks for row in chunk] == rows
    for chunk in chunks:
        assert len(chunk) <= max(requests, 1)
        if len(chunk) > 1:
            assert sum(bytes_ for bytes_, _ in chunk) <= size
            assert tokens is None or sum(count for _, count in chunk) <= tokens
    for chunk, following in pairwise(chunks):
        fuller = [*chunk, following[0]]
        assert (
            len(fuller) > requests
            or sum(bytes_ for bytes_, _ in fuller) > size
            or (tokens is not None and sum(count for _, count in fuller) > tokens)
        ), "the chunk was closed although one more would have fitted"


@given(st.tuples(MAYBE, MAYBE, MAYBE), st.tuples(SMALL, SMALL, MAYBE))
def test_the_narrower_bound_is_in_force(
    wanted: tuple[int | None, int | None, int | None], most: tuple[int, int, int | None]
) -> None:
    """A user could exceed the provider's limits, or not narrow them."""
    requests, size, tokens = wanted
    most_requests, most_bytes, most_tokens = most
    policy = ChunkPolicy(max_requests=requests, max_bytes=size, max_tokens=tokens)
    provider = ProviderLimits(
        max_requests=most_requests, max_bytes=most_bytes, max_tokens=most_tokens
    )
    limits = ChunkLimits.of(policy, provider)
    assert limits.max_requests == min(requests or most_requests, most_requests)
    assert limits.max_bytes == min(size or most_bytes, most_bytes)
    both = [bound for bound in (tokens, most_tokens) if bound is not None]
    assert limits.max_tokens == (min(both) if both else None)
