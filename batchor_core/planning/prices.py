"""What tokens cost, in US dollars, with the provider's batch discount.

Prices come from the data that ``genai-prices`` ships; nothing is downloaded. An unknown model has
an unknown cost (None), never zero.
"""

from dataclasses import dataclass

_BATCH_DISCOUNT = 0.5
"""What every provider takes off in batch mode (facts: providers, section 3, "price")."""

_PROBE_TOKENS = 1_000
"""Prices are read at this size, below every tier that depends on the length of the context."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars per million tokens in batch mode.

    Attributes:
        input_usd: Per million input tokens that were not cached.
        cached_input_usd: Per million cached input tokens.
        output_usd: Per million output tokens, reasoning included.
        realtime_factor: What the same request costs outside of batch mode, as a multiple.
    """

    input_usd: float
    cached_input_usd: float
    output_usd: float
    realtime_factor: float = 1 / _BATCH_DISCOUNT

    def cost(self, input_tokens: int, cached_input_tokens: int, output_tokens: int) -> float:
        """Return US dollars; ``input_tokens`` includes the cached ones."""
        fresh = input_tokens - cached_input_tokens
        return (
            fresh * self.input_usd
            + cached_input_tokens * self.cached_input_usd
            + output_tokens * self.output_usd
        ) / 1_000_000


def batch_price(provider: str, model: str) -> Price | None:
    """Return the batch price of a model, or None where it is not known.

    The price data has batch variants for some models only, and answers with the standard price
    where it has none: the discount is then taken off here.
    """
    standard = _per_million(provider, model, batch=False)
    if standard is None:
        return None
    batch = _per_million(provider, model, batch=True) or standard
    if batch == standard:
        batch = tuple(price * _BATCH_DISCOUNT for price in standard)
    factor = standard[0] / batch[0] if batch[0] else 1 / _BATCH_DISCOUNT
    return Price(
        input_usd=batch[0],
        cached_input_usd=batch[1],
        output_usd=batch[2],
        realtime_factor=factor,
    )


def _per_million(provider: str, model: str, *, batch: bool) -> tuple[float, ...] | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415 - loads a megabyte of price data

    context = {"processing": "batch"} if batch else None
    usages = (
        Usage(input_tokens=_PROBE_TOKENS),
        Usage(input_tokens=_PROBE_TOKENS, cache_read_tokens=_PROBE_TOKENS),
        Usage(output_tokens=_PROBE_TOKENS),
    )
    try:
        totals = [
            calc_price(usage, model, provider_id=provider, price_context=context).total_price
            for usage in usages
        ]
    except LookupError:
        return None
    return tuple(float(total) * 1_000_000 / _PROBE_TOKENS for total in totals)
