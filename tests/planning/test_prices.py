"""What tokens cost."""

import pytest

from batchor_core.planning.prices import Price, batch_price


def test_batch_mode_costs_half() -> None:
    """Costs would be shown twice as high, or the saving be none."""
    price = batch_price("openai", "gpt-4.1-mini")
    assert price is not None
    assert price.realtime_factor == pytest.approx(2)
    assert (price.input_usd, price.output_usd) == (pytest.approx(0.2), pytest.approx(0.8))
    assert price.cached_input_usd < price.input_usd


@pytest.mark.parametrize("model", ["no-such-model", "", "gpt-99-ultra-imaginary"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    """An unknown price would count as nothing, and a budget never be used up."""
    assert batch_price("openai", model) is None


def test_an_unknown_provider_has_no_price() -> None:
    """A host that nobody knows would crash the run."""
    assert batch_price("no-such-provider", "gpt-4.1-mini") is None


def test_cached_tokens_are_part_of_the_input() -> None:
    """Cached tokens would be paid for twice."""
    price = Price(input_usd=2.0, cached_input_usd=0.5, output_usd=8.0)
    assert price.cost(1_000_000, 0, 0) == 2.0
    assert price.cost(1_000_000, 1_000_000, 0) == 0.5
    assert price.cost(1_000_000, 500_000, 250_000) == 1.0 + 0.25 + 2.0
    assert price.cost(0, 0, 0) == 0.0
