"""Keys that change while batches are in flight, to another of the account or of another one."""

from collections.abc import Callable
from typing import Any

import pytest

from batchor_core import (
    AnthropicProviderConfig,
    BatchJob,
    GeminiProviderConfig,
    OpenAIProviderConfig,
    Run,
    RunControlState,
    RunState,
)
from batchor_core.executor.poll import LOST_AFTER_MISSING
from batchor_core.simulator import Simulator
from tests.core.world import World, check_conserved, check_paid_once

Config = Callable[[Simulator], Any]
VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
PREFIXES = ("", "anthropic.", "gemini.")
UNSEEN = tuple(
    {"kind": "http_error", "status": 404, "match": {"route": f"{prefix}batches.get"}}
    for prefix in PREFIXES
)
"""What a key of another account is told of a batch."""

UNANSWERED = tuple(
    {"kind": "drop_after_commit", "match": {"route": f"{prefix}batches.create"}, "times": 1}
    for prefix in PREFIXES
)
UNLISTED_S = 2000.0


@pytest.fixture(autouse=True)
def _first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    _use_key(monkeypatch, "key-of-yesterday-0123")


def _use_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, key)


def _openai(sim: Simulator) -> OpenAIProviderConfig:
    return OpenAIProviderConfig(model="gpt-4.1-mini", base_url=sim.openai_base_url)


def _anthropic(sim: Simulator) -> AnthropicProviderConfig:
    return AnthropicProviderConfig(
        model="claude-sonnet-4-5", max_tokens=200, base_url=sim.anthropic_base_url
    )


def _gemini(sim: Simulator) -> GeminiProviderConfig:
    return GeminiProviderConfig(
        model="gemini-2.5-flash", backend="developer", base_url=sim.gemini_base_url
    )


every_provider = pytest.mark.parametrize("config", [_openai, _anthropic, _gemini])


def _job(world: World, config: Config) -> BatchJob:
    return world.job(3, provider_config=config(world.sim))


def _again(world: World) -> Run:
    """The run, as another process finds it."""
    return world.new_runner().get_run("run-1")


def _advance_for_long(world: World, run: Run) -> None:
    for _ in range(LOST_AFTER_MISSING + 5):
        run.advance()
        world.clock.sleep(100)


def _assert_paused_for_account(run: Run) -> None:
    run.refresh()
    assert run.control_state is RunControlState.PAUSE
    assert (run.control_reason or "").startswith("account_changed: ")


def _assert_succeeds(world: World, run: Run) -> None:
    run.wait()
    assert run.status is RunState.SUCCEEDED
    check_conserved(run, 3)
    check_paid_once(world)


@every_provider
def test_another_key_of_the_account_goes_on(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotated key would strand what is in flight, for whoever polls all runs together."""
    world.runner.open(_job(world, config), run_id="run-1").advance()
    _use_key(monkeypatch, "key-of-today-4567")
    world.clock.sleep(1000)
    rotated = world.new_runner()
    assert rotated.poll_due(60) == 1
    _assert_succeeds(world, rotated.get_run("run-1"))


@every_provider
def test_a_key_of_another_account_pauses_and_loses_nothing(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that another account cannot see would be counted as lost, for good."""
    world.runner.open(_job(world, config), run_id="run-1").advance()
    _use_key(monkeypatch, "key-of-others-4567")
    world.sim.faults(*UNSEEN)
    wrong = _again(world)
    _advance_for_long(world, wrong)
    _assert_paused_for_account(wrong)
    assert wrong.counts().in_flight == 3

    _use_key(monkeypatch, "key-of-yesterday-0123")
    world.sim.clear_faults()
    right = _again(world)
    right.resume()
    _assert_succeeds(world, right)


@every_provider
def test_a_create_in_doubt_is_not_sent_again_in_another_account(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look in the wrong account finds nothing, and the rows would be bought again there."""
    world.sim.faults(*UNANSWERED, {"kind": "list_lag_seconds", "seconds": UNLISTED_S})
    world.runner.open(_job(world, config), run_id="run-1").advance()
    assert world.batches() == 1
    _use_key(monkeypatch, "key-of-others-4567")
    wrong = _again(world)
    _advance_for_long(world, wrong)  # the list of another account does not show it
    _assert_paused_for_account(wrong)
    assert world.batches() == 1
    assert wrong.counts().in_flight == 3

    _use_key(monkeypatch, "key-of-yesterday-0123")
    world.sim.clear_faults()
    world.clock.sleep(UNLISTED_S)
    right = _again(world)
    right.resume()
    _assert_succeeds(world, right)


def test_a_witness_proves_the_account(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that never arrived would hold its run for ever after each rotation of a key."""
    world.runner.run_and_wait(_job(world, _openai), run_id="run-0")
    world.sim.faults(
        {"kind": "drop_before_commit", "match": {"route": "batches.create"}, "times": 1}
    )
    world.runner.open(_job(world, _openai), run_id="run-1").advance()
    _use_key(monkeypatch, "key-of-today-4567")
    run = _again(world)
    run.wait()
    assert run.status is RunState.SUCCEEDED
    assert world.batches() == 2


def test_results_that_another_account_cannot_fetch_are_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that were paid for would be thrown away, since the files are another account's."""
    run = world.runner.open(_job(world, _openai), run_id="run-1")
    run.advance()
    world.clock.sleep(1000)
    assert world.runner.poll_due(60) == 1
    _use_key(monkeypatch, "key-of-others-4567")
    world.sim.faults(
        *UNSEEN, {"kind": "http_error", "status": 404, "match": {"route": "files.content"}}
    )
    wrong = _again(world)
    _advance_for_long(world, wrong)
    _assert_paused_for_account(wrong)

    _use_key(monkeypatch, "key-of-yesterday-0123")
    world.sim.clear_faults()
    right = _again(world)
    right.resume()
    _assert_succeeds(world, right)
