"""What tokens cost, in US dollars, with the provider's batch discount.

Prices come from the data that ``genai-prices`` ships; nothing is downloaded. An unknown model has
an unknown cost (None), never zero.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

_BATCH_DISCOUNT = 0.5
"""What every provider takes off in batch mode (facts: providers, section 3, "price")."""

_PROBE_TOKENS = 1_000
"""Prices are read at this size, below every tier that depends on the length of the context."""


_PRICE_IDS = {"gemini": "google"}
"""What ``genai-prices`` calls a provider, where it is another name than ours."""


class StatedPrice(Protocol):
    """Real-time prices that a user states; ``providers.config.TokenPrice`` is one."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None
    cache_write_usd: float | None
    batch_discount: float


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars per million tokens in batch mode.

    Attributes:
        input_usd: Per million input tokens that were not cached.
        cached_input_usd: Per million input tokens read from a cache.
        output_usd: Per million output tokens, reasoning included.
        cache_write_usd: Per million input tokens written to a cache; None: as other input.
        realtime_factor: What the same request costs outside of batch mode, as a multiple.
    """

    input_usd: float
    cached_input_usd: float
    output_usd: float
    cache_write_usd: float | None = None
    realtime_factor: float = 1 / _BATCH_DISCOUNT

    def cost(
        self,
        input_tokens: int,
        cached_input_tokens: int,
        output_tokens: int,
        cache_write_tokens: int = 0,
    ) -> float:
        """Return US dollars; ``input_tokens`` includes those read from and written to a cache.

        Some hosts leave the cached ones out of it: a cost is never negative.
        """
        fresh = max(0, input_tokens - cached_input_tokens - cache_write_tokens)
        write_usd = self.input_usd if self.cache_write_usd is None else self.cache_write_usd
        return (
            fresh * self.input_usd
            + cached_input_tokens * self.cached_input_usd
            + cache_write_tokens * write_usd
            + output_tokens * self.output_usd
        ) / 1_000_000


def usd(amount: float) -> str:
    """Return an amount as people read it, to the micro-dollar: ``$1,250.00``, ``$0.000012``."""
    whole, _, cents = f"{amount:,.6f}".rstrip("0").partition(".")
    return f"${whole}.{cents:0<2}"


def exceeds(amount: float, bound: float) -> bool:
    """Whether an amount is larger than a bound, to the micro-dollar that messages show."""
    return round(amount, 6) > round(bound, 6)


def batch_price(provider: str, model: str, stated: StatedPrice | None = None) -> Price | None:
    """Return the batch price of a model, or None where it is not known.

    The price data has batch variants for some models only, and answers with the standard price
    where it has none: the discount is then taken off here.

    Args:
        provider: ``openai``, ``anthropic`` or ``gemini``.
        model: As the provider spells it.
        stated: The user's own prices, which win.
    """
    if stated is not None:
        return _stated(stated)
    name = _PRICE_IDS.get(provider, provider)
    standard = _per_million(name, model, batch=False)
    if standard is None:
        return None
    batch = _per_million(name, model, batch=True) or standard
    if batch == standard:
        batch = _Rates(*(price * _BATCH_DISCOUNT for price in standard))
    # Google gives no discount on what it reads from a cache (facts: providers, section 3).
    cached = standard.cached if provider == "gemini" else batch.cached
    return Price(
        input_usd=batch.fresh,
        cached_input_usd=min(cached, batch.fresh),
        output_usd=batch.output,
        cache_write_usd=batch.written,
        realtime_factor=standard.fresh / batch.fresh if batch.fresh else 1 / _BATCH_DISCOUNT,
    )


def _stated(stated: StatedPrice) -> Price:
    factor = 1 - stated.batch_discount
    cached = stated.input_usd if stated.cached_input_usd is None else stated.cached_input_usd
    written = stated.cache_write_usd
    return Price(
        input_usd=stated.input_usd * factor,
        cached_input_usd=cached * factor,
        output_usd=stated.output_usd * factor,
        cache_write_usd=None if written is None else written * factor,
        realtime_factor=1 / factor if factor else 1.0,
    )


class _Rates(NamedTuple):
    """US dollars per million tokens."""

    fresh: float
    cached: float
    written: float
    output: float


def _per_million(provider: str, model: str, *, batch: bool) -> _Rates | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415 - loads a megabyte of price data

    context = {"processing": "batch"} if batch else None
    usages = (
        Usage(input_tokens=_PROBE_TOKENS),
        Usage(input_tokens=_PROBE_TOKENS, cache_read_tokens=_PROBE_TOKENS),
        Usage(input_tokens=_PROBE_TOKENS, cache_write_tokens=_PROBE_TOKENS),
        Usage(output_tokens=_PROBE_TOKENS),
    )
    try:
        totals = [
            calc_price(usage, model, provider_id=provider, price_context=context).total_price
            for usage in usages
        ]
    except LookupError:
        return None
    return _Rates(*(float(total) * 1_000_000 / _PROBE_TOKENS for total in totals))
