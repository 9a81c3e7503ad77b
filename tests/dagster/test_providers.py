"""Accounts of every provider as Dagster resources."""

from typing import Any

import dagster as dg
import pytest

from batchor_core import ConfigurationError
from batchor_dagster import AnthropicBatchResource, GeminiBatchResource, OpenAIBatchResource
from batchor_dagster.resources import ModelRequest
from tests.dagster.world import KEY, ROWS, World, answers_asset, failure


def _add_accounts(world: World) -> None:
    world.resources |= {
        "anthropic": AnthropicBatchResource(api_key=KEY, base_url=world.sim.anthropic_base_url),
        "gemini": GeminiBatchResource(
            api_key=KEY, base_url=world.sim.gemini_base_url, backend="developer"
        ),
    }


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"endpoint": "chat"}, "label"),
        (
            {"provider": "anthropic", "model": "claude-sonnet-4-5", "max_output_tokens": 200},
            "label",
        ),
        ({"provider": "gemini", "model": "gemini-2.5-flash"}, "label"),
        (
            {
                "model": "text-embedding-3-small",
                "endpoint": "embeddings",
                "dimensions": 8,
                "output": None,
            },
            "embedding",
        ),
    ],
)
def test_asset_of_every_provider(world: World, options: dict[str, Any], column: str) -> None:
    """A team could use only one provider in Dagster."""
    _add_accounts(world)
    answers = answers_asset(**options)
    assert world.request(answers).success
    world.finish(answers)
    table = world.table()
    assert table.height == ROWS
    assert table[column].null_count() == 0
    assert world.sim.ledger().paid_twice() == []


def test_key_stays_out_of_the_store(world: World) -> None:
    """Whoever reads the store could spend the account's money."""
    _add_accounts(world)
    options = {"provider": "anthropic", "model": "claude-sonnet-4-5", "max_output_tokens": 200}
    assert world.request(answers_asset(**options)).success
    spec = world.run.spec["provider_config"]
    assert spec["credentials"] == "anthropic"
    assert KEY not in str(spec)


def test_anthropic_wants_a_bound(world: World) -> None:
    """The user would read about a field of ours that the decorator does not have."""
    _add_accounts(world)
    result = world.request(answers_asset(provider="anthropic", model="claude-sonnet-4-5"))
    assert not result.success
    assert "give max_output_tokens" in failure(result)
    assert world.batches == []


@pytest.mark.parametrize(
    ("account", "wanted"),
    [
        (AnthropicBatchResource(), {"dimensions": 8, "max_output_tokens": 9}),
        (AnthropicBatchResource(), {"endpoint": "chat", "max_output_tokens": 9}),
        (AnthropicBatchResource(prompt_cache="2h"), {"max_output_tokens": 9}),
        (GeminiBatchResource(backend="moon"), {}),
        (OpenAIBatchResource(), {"endpoint": "messages"}),
    ],
)
def test_what_an_account_cannot_do(account: Any, wanted: dict[str, Any]) -> None:
    """A wish would be dropped without a word."""
    with pytest.raises(ConfigurationError):
        account.provider_config(ModelRequest(credentials="x", model="m", **wanted))


def test_kinds_tell_the_provider() -> None:
    """The asset graph would show OpenAI's mark on everything."""
    spec = answers_asset(provider="gemini", model="gemini-2.5-flash").get_asset_spec(
        dg.AssetKey("answers")
    )
    assert spec.kinds == {"llm", "gemini"}
    other = answers_asset(provider="our_account").get_asset_spec(dg.AssetKey("answers"))
    assert other.kinds == {"llm"}
