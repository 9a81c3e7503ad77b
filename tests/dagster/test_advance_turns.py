"""Batch runs that share a Dagster run: none of them stands in front of the others."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core import Run
from batchor_core.executor.cycle import Progress
from batchor_core.executor.poll_account import AccountPoll
from batchor_dagster import OpenAIBatchResource, batch_asset
from batchor_dagster.sensors import advance_job
from batchor_dagster.waiting import time_box
from tests.dagster.world import KEY, MODEL, World, answers_asset, failure, rows_of

DAYS = ("d0", "d1", "d2")


@pytest.fixture
def answers() -> dg.AssetsDefinition:
    """A batch asset."""
    return answers_asset()


@pytest.fixture
def launched(world: World, answers: dg.AssetsDefinition) -> dg.RunRequest:
    """A Dagster run that is to collect three batch runs."""
    for day in DAYS:
        world.request(answers, partition=day)
    world.provider_works()
    (request,) = world.advance_tick(answers)
    return request


class Breaking:
    """Lets advancing one batch run end in an exception, and counts the turns of all.

    Args:
        monkeypatch: Undoes it.
        broken: The id of the batch run; None lets all go well.
        error: What is raised.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, broken: str | None, error: BaseException
    ) -> None:
        self.turns: list[str] = []
        self.error: BaseException | None = error
        advance = Run.advance

        def patched(run: Run, deadline_s: float | None = None) -> Progress:
            self.turns.append(run.run_id)
            if run.run_id == broken and self.error is not None:
                raise self.error
            return advance(run, deadline_s)

        monkeypatch.setattr(Run, "advance", patched)


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(28, "No space left on device")])
def test_whatever_is_raised_harms_no_other(
    world: World,
    answers: dg.AssetsDefinition,
    launched: dg.RunRequest,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """An exception that is no error of ours would keep all batch runs behind it from their end."""
    first = world.runs[0].run_id
    Breaking(monkeypatch, first, error)
    result = world.launch(launched, answers)

    assert f"could not advance {first};" in failure(result)
    assert [run.state for run in world.runs] == ["running", "succeeded", "succeeded"]


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_batch_run_that_failed_stands_in_front_of_nobody(
    world: World,
    answers: dg.AssetsDefinition,
    launched: dg.RunRequest,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """A batch run that kills its process would be launched first with every tick, for ever."""
    first = world.runs[0].run_id
    breaking = Breaking(monkeypatch, first, error)
    assert not world.launch(launched, answers).success
    breaking.error = None
    world.cursor = None
    rest = [run_id for r in world.advance_tick(answers) for run_id in _batch_runs(r)]
    assert first not in rest

    world.store.end_advance(first)
    world.cursor = None
    for request in world.advance_tick(answers):
        world.launch(request, answers)
    assert {run.state for run in world.runs} == {"succeeded"}


def test_huge_batch_run_takes_turns(
    world: World,
    answers: dg.AssetsDefinition,
    launched: dg.RunRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small batch runs would wait until a huge one beside them has no work left."""
    huge, *small = (run.run_id for run in world.runs)
    turns, until = _scripted(monkeypatch, lambda run_id, turn: run_id == huge or turn < 2)
    until.looks = 9
    result = world.launch(launched, answers)

    assert result.success
    assert turns == [huge, *small, huge, *small, *[huge] * 6]


def test_each_batch_run_has_a_turn_when_time_is_over(
    world: World,
    answers: dg.AssetsDefinition,
    launched: dg.RunRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of twenty slow batch runs would not be advanced by any Dagster run."""
    turns, until = _scripted(monkeypatch, lambda _run_id, _turn: True)
    until.looks = 0
    assert world.launch(launched, answers).success
    assert turns == [run.run_id for run in world.runs]


def test_account_that_cannot_be_polled_harms_no_other(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug, or a variable that is not set, would keep every account's batches from their end."""
    url = world.sim.openai_base_url
    world.resources["second"] = OpenAIBatchResource(api_key=KEY, base_url=url, project="second")

    @batch_asset(model=MODEL, provider="second", partitions_def=answers.partitions_def)
    def others(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    world.request(answers)
    world.request(others)
    broken, good = world.runs
    assert broken.account != good.account
    world.provider_works()
    poll = AccountPoll.run

    def run(one: AccountPoll, walk: Any) -> Any:
        if one._account == broken.account:
            raise ValueError("a bug")
        return poll(one, walk)

    monkeypatch.setattr(AccountPoll, "run", run)
    (request,) = world.advance_tick(answers, others)
    assert _batch_runs(request) == [good.run_id]


class _Looks(time_box.TimeBox):
    """A time box that is over after it was looked at so often."""

    looks = 0

    @property
    def is_over(self) -> bool:
        """Whether it is."""
        type(self).looks -= 1
        return type(self).looks < 0


def _scripted(
    monkeypatch: pytest.MonkeyPatch, has_more: Callable[[str, int], bool]
) -> tuple[list[str], Any]:
    """Let turns do nothing but say whether there is more to do; returns them, and the time box."""
    turns: list[str] = []

    def advance(run: Run, deadline_s: float | None = None) -> Progress:
        assert deadline_s == advance_job.TURN_SECONDS
        turns.append(run.run_id)
        more = has_more(run.run_id, turns.count(run.run_id))
        return Progress(run=run.record, did=["collect"] if more else [])

    monkeypatch.setattr(Run, "advance", advance)
    monkeypatch.setattr(advance_job, "TimeBox", _Looks)
    return turns, _Looks


def _batch_runs(request: dg.RunRequest) -> list[str]:
    config: Any = request.run_config
    return list(config["ops"]["advance"]["config"]["batch_runs"])
