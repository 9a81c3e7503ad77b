"""What was paid and what batch mode saved, grouped as somebody asks for it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from batchor_core.model.records import RunDayCosts
from batchor_core.planning.prices import Price, batch_price
from batchor_core.providers.config import TokenPrice

CostKey = Literal["run", "model", "provider", "day", "asset"]

_KEYS: Mapping[CostKey, Callable[[RunDayCosts], str | None]] = {
    "run": lambda costs: costs.run_id,
    "model": lambda costs: costs.provider_config.get("model"),
    "provider": lambda costs: costs.provider_config.get("provider"),
    "day": lambda costs: costs.day.isoformat(),
    "asset": lambda costs: ", ".join(costs.assets) or None,
}


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """What one run, model, provider, day or asset has cost.

    Attributes:
        key: Which; None: without an asset.
        batches: Provider batches that were collected.
        items: Items that got a final outcome.
        input_tokens: Cached ones included.
        output_tokens: Reasoning included.
        known_usd: The part of the cost that is known; None: none of it is.
        unpriced_batches: Batches whose cost is unknown.
        unpriced_tokens: Tokens in them, of input and output.
        saved_usd: What the part that is known would have cost more outside of batch mode; None:
            none is, or a model's price is not known any more.
    """

    key: str | None
    batches: int
    items: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    known_usd: float | None
    unpriced_batches: int
    unpriced_tokens: int
    saved_usd: float | None

    @property
    def cost_usd(self) -> float | None:
        """The whole cost; None as long as any part of it is unknown."""
        return None if self.unpriced_batches else self.known_usd


def cost_lines(costs: Iterable[RunDayCosts], by: CostKey) -> list[CostLine]:
    """Group what ``Store.costs`` tells.

    Returns:
        Days in order of time; everything else with the most expensive first.
    """
    factors = _Factors()
    sums: dict[str | None, CostLine] = {}
    for each in costs:
        key = _KEYS[by](each)
        line = _line(key, each, factors)
        sums[key] = add(sums[key], line) if key in sums else line
    if by == "day":
        return sorted(sums.values(), key=lambda line: line.key or "")
    return sorted(sums.values(), key=lambda line: (-(line.known_usd or 0.0), line.key or ""))


def add(one: CostLine, other: CostLine, key: str | None = None) -> CostLine:
    """Return the sum of two lines, under the first one's key or another."""
    sums: dict[str, Any] = {
        each.name: getattr(one, each.name) + getattr(other, each.name)
        for each in fields(CostLine)
        if each.type is int
    }
    known = [usd for usd in (one.known_usd, other.known_usd) if usd is not None]
    saved = [line.saved_usd for line in (one, other) if line.known_usd is not None]
    return CostLine(
        key=one.key if key is None else key,
        known_usd=sum(known) if known else None,
        saved_usd=_sum(saved) if known else None,
        **sums,
    )


def _sum(parts: Iterable[float | None]) -> float | None:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _line(key: str | None, costs: RunDayCosts, factors: "_Factors") -> CostLine:
    usage, factor = costs.usage, factors.of(costs.provider_config)
    saved = None
    if usage.cost_usd is not None and factor is not None:
        saved = usage.cost_usd * (factor - 1)
    return CostLine(
        key=key,
        batches=costs.batches,
        items=costs.items,
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        known_usd=usage.cost_usd,
        unpriced_batches=costs.unpriced_batches,
        unpriced_tokens=costs.unpriced_tokens,
        saved_usd=saved,
    )


class _Factors:
    """What requests cost outside of batch mode, as a multiple, looked up once a model."""

    def __init__(self) -> None:
        self._known: dict[str, float | None] = {}

    def of(self, config: Mapping[str, Any]) -> float | None:
        named = {name: config.get(name) for name in ("provider", "model", "price")}
        key = repr(named)
        if key not in self._known:
            price = _price(**named)
            self._known[key] = None if price is None else price.realtime_factor
        return self._known[key]


def _price(provider: Any, model: Any, price: Any) -> Price | None:
    stated = None if price is None else TokenPrice.model_validate(price)
    return batch_price(provider or "", model or "", stated)
