"""What a job will cost and how long it may take, from counts alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from batchor_core.model.records import ScopeLimits
from batchor_core.planning.chunking import ChunkLimits, ChunkMeter
from batchor_core.planning.prices import Price
from batchor_core.planning.tokens import SAFETY_MARGIN

BATCH_WINDOW_H = 24
"""The time within which every provider promises a batch to end."""

_LOW_SHARE_OF_SAMPLED = 1 / SAFETY_MARGIN
_LOW_SHARE_OF_BYTES = 0.6
"""English prose has up to five bytes a token; bytes alone are taken for three."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a job comes to, as long as every row is sent once and no answer is reused.

    Costs are uncertain for two reasons. Input tokens are counted on a sample and carry a margin
    of a tenth (where the model's vocabulary cannot be had, they are estimated from bytes, with a
    wider one). And nobody knows how long the answers will be. Retries of failed rows come on top,
    discounts for what a provider reads from its cache come off.

    Attributes:
        rows: Rows of the input.
        size_bytes: Of the request files, about.
        input_tokens: With the margin.
        output_tokens: If every answer is as long as is assumed (``assumed_output_tokens``).
        max_output_tokens: If every answer is as long as the bound allows; None: none is set.
        chunks: Parts that the input is packed into.
        provider_batches: Batches that are expected of them: a chunk that is larger than the
            queue's limit is halved until it fits.
        low_usd: Without the margin, and without any answer; None: the price is unknown.
        expected_usd: With ``output_tokens``.
        high_usd: With ``max_output_tokens``; None also where no bound is set.
        reserved_usd: What budgets are held against before anything is sent.
        realtime_usd: What ``expected_usd`` would be outside of batch mode.
        price_source: ``stated`` by the user, ``genai-prices``, or None: unknown.
        queue_rounds: How often the queue has to be filled at its limits, so far as limits are
            known; None: none is known, and everything may be in the queue at once.
    """

    rows: int
    size_bytes: int
    input_tokens: int
    output_tokens: int
    max_output_tokens: int | None
    chunks: int
    provider_batches: int
    low_usd: float | None
    expected_usd: float | None
    high_usd: float | None
    reserved_usd: float | None
    realtime_usd: float | None
    price_source: str | None
    queue_rounds: int | None

    @property
    def saving_usd(self) -> float | None:
        """What batch mode saves of ``realtime_usd``; None where the price is unknown."""
        if self.realtime_usd is None or self.expected_usd is None:
            return None
        return self.realtime_usd - self.expected_usd

    @property
    def longest_h(self) -> int | None:
        """Hours at worst: each round through the queue takes its whole window of 24 hours.

        Most batches end far sooner. None where no limit of the queue is known.
        """
        return None if self.queue_rounds is None else self.queue_rounds * BATCH_WINDOW_H


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """What tokens cost, and how many an answer has.

    Attributes:
        price: Batch price; None where unknown.
        source: Where it is from.
        assumed_output_tokens: Of an answer, where no bound is set.
        output_token_bound: The most that an answer can have.
        is_sampled: Whether input tokens were counted on a sample, with the model's vocabulary.
    """

    price: Price | None
    source: str | None
    assumed_output_tokens: int
    output_token_bound: int | None
    is_sampled: bool


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A chunk by its numbers."""

    requests: int
    size_bytes: int
    tokens: int


class Packing:
    """Packs rows into chunks as ingestion does, and keeps the chunks' numbers only."""

    def __init__(self, limits: ChunkLimits) -> None:
        self._meter = ChunkMeter(limits)
        self._parcels: list[Parcel] = []
        self._tokens = 0

    def add(self, size_bytes: int, tokens: float) -> None:
        """Add a row."""
        if not self._meter.fits(size_bytes, tokens):
            self._close()
        self._meter.add(size_bytes, tokens)
        self._tokens += int(tokens) + 1  # rounded up row by row, as sealing does

    def parcels(self) -> list[Parcel]:
        """Return the chunks; the last one is closed with it."""
        if self._meter.requests:
            self._close()
        return self._parcels

    def _close(self) -> None:
        meter = self._meter
        self._parcels.append(
            Parcel(requests=meter.requests, size_bytes=meter.size_bytes, tokens=self._tokens)
        )
        self._tokens = 0
        meter.reset()


def estimate_of(parcels: Iterable[Parcel], pricing: Pricing, queue: ScopeLimits) -> Estimate:
    """Add chunks up.

    Args:
        parcels: The chunks.
        pricing: What they are priced by.
        queue: The limits of the queue that they go through, so far as they are known.
    """
    all_ = list(parcels)
    rows = sum(parcel.requests for parcel in all_)
    tokens = sum(parcel.tokens for parcel in all_)
    bound, price = pricing.output_token_bound, pricing.price
    assumed = pricing.assumed_output_tokens
    output = rows * (assumed if bound is None else min(assumed, bound))
    longest = None if bound is None else rows * bound
    batches = sum(_batches_of(parcel, queue) for parcel in all_)
    low_share = _LOW_SHARE_OF_SAMPLED if pricing.is_sampled else _LOW_SHARE_OF_BYTES
    expected = None if price is None else price.cost(tokens, 0, output)
    high = None if price is None or longest is None else price.cost(tokens, 0, longest)
    return Estimate(
        rows=rows,
        size_bytes=sum(parcel.size_bytes for parcel in all_),
        input_tokens=tokens,
        output_tokens=output,
        max_output_tokens=longest,
        chunks=len(all_),
        provider_batches=batches,
        low_usd=None if price is None else price.cost(int(tokens * low_share), 0, 0),
        expected_usd=expected,
        high_usd=high,
        reserved_usd=expected if longest is None else high,
        realtime_usd=None
        if price is None or expected is None
        else expected * price.realtime_factor,
        price_source=pricing.source,
        queue_rounds=_queue_rounds(rows, tokens, batches, queue),
    )


def _batches_of(parcel: Parcel, queue: ScopeLimits) -> int:
    """Return how many batches a chunk becomes that is halved until each part fits the queue."""
    batches = 1
    while batches < parcel.requests and (
        _exceeds(parcel.tokens / batches, queue.max_tokens)
        or _exceeds(parcel.requests / batches, queue.max_requests)
    ):
        batches *= 2
    return min(batches, parcel.requests)


def _exceeds(amount: float, limit: int | None) -> bool:
    return limit is not None and amount > limit


def _queue_rounds(rows: int, tokens: int, batches: int, queue: ScopeLimits) -> int | None:
    pairs = ((rows, queue.max_requests), (tokens, queue.max_tokens), (batches, queue.max_batches))
    rounds = [math.ceil(amount / limit) for amount, limit in pairs if limit is not None]
    return max(rounds, default=None)
