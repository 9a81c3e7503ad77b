"""What partitions are told while they wait: no more than a person would want to read."""

import json
from collections.abc import Sequence

import dagster as dg
import pytest

from batchor_core import Run
from batchor_core.model.states import RunControlState
from batchor_dagster import constants as c
from batchor_dagster.asset.metadata import observations, observed_partition
from batchor_dagster.resources.connections import open_runner
from batchor_dagster.sensors import pause_news, progress_news
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR
from tests.dagster.crowd import Crowd, crowded_asset, small_asset
from tests.dagster.world import World, answers_asset

KEY = dg.AssetKey("answers")


@pytest.fixture
def answers() -> dg.AssetsDefinition:
    """A batch asset."""
    return answers_asset()


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_many_partitions_and_batches_stay_small(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a megabyte of events would be stored by a request, and again with each advance."""
    asset = answers_asset(backfill_policy=dg.BackfillPolicy.single_run())
    batches = [f"batch_{number:032}" for number in range(5000)]
    monkeypatch.setattr(Run, "provider_batch_ids", lambda _run: batches)
    tags = {
        "dagster/asset_partition_range_start": "d0",
        "dagster/asset_partition_range_end": "d59",
    }
    result = world.request(asset, partition=None, tags=tags)
    world.finish(asset)

    observed = [e.asset_observation_data.asset_observation for e in _observed(result)]
    assert sum(len(json.dumps(_texts(one.metadata))) for one in observed) < 10_000
    (told,) = observed
    assert told.partition is None
    assert told.metadata[c.META_PROGRESS_BATCH_COUNT].value == 5000
    assert told.metadata[c.META_PROGRESS_BATCHES].value == batches[-5:]
    assert told.metadata[c.META_OBSERVED_PARTITIONS].value.endswith("d8, d9 and 50 more")
    assert len(world.observations()) < 5


@pytest.mark.parametrize(
    ("partitions", "told"),
    [
        ([], [None]),
        ([""], [None]),
        (["a"], ["a"]),
        ([f"p{n}" for n in range(10)], [f"p{n}" for n in range(10)]),
        ([f"p{n}" for n in range(11)], [None]),
    ],
)
def test_who_is_told(partitions: Sequence[str], told: list[str | None]) -> None:
    """A partition's page would be empty, or thousands of events be written for one batch run."""
    found = list(observations(KEY, partitions, {}))
    assert [one.partition for one in found] == told
    assert observed_partition(partitions) == told[0]


def test_nothing_new_is_not_told_again(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each advance of a run that takes all day would write the same events again."""
    world.request(answers)
    run_id = world.run.run_id
    assert _news(world, run_id) == []

    _change(monkeypatch, progress_rows_in_flight=1)
    assert _news(world, run_id) == []  # in passing
    monkeypatch.setattr(progress_news, "OBSERVE_SECONDS", 0.0)
    assert len(_news(world, run_id)) == 1
    _change(monkeypatch, progress_cost_usd=0.25)
    assert _news(world, run_id) == []  # nobody waits for a cent


def test_another_state_is_told_at_once(world: World, answers: dg.AssetsDefinition) -> None:
    """A partition would be said to work for minutes after its batch run was paused or over."""
    world.request(answers)
    world.store.set_control(world.run.run_id, RunControlState.PAUSE, "why")
    (told,) = _news(world, world.run.run_id)
    assert told.metadata[c.META_PROGRESS_STATUS].value == "running (pause: why)"


def test_batch_runs_of_one_asset_are_told_apart(world: World, answers: dg.AssetsDefinition) -> None:
    """What was told of another partition would keep this one from being told."""
    world.request(answers)
    world.request(answers, partition="d1")
    first, second = world.runs
    world.store.set_control(second.run_id, RunControlState.PAUSE, "why")
    assert _news(world, first.run_id) == []
    assert [one.partition for one in _news(world, second.run_id)] == ["d1"]


def test_many_pauses_are_told_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoked key would write thousands of events in one tick of a sensor."""
    monkeypatch.setattr(pause_news, "PAUSES_PER_TICK", 15)
    answers, small = crowded_asset(), small_asset()
    crowd = Crowd(world, answers)
    run_ids = crowd.add(*[f"p{n:03}" for n in range(32)])
    others = crowd.add("p100", "p101", asset="small")
    for run_id in [*run_ids, *others]:
        world.store.set_control(run_id, RunControlState.PAUSE, "the key was revoked")
    ticks = [world.tick(ADVANCE_SENSOR, [answers, small]).asset_events for _ in range(4)]

    told = [
        [(event.asset_key.to_user_string(), event.partition) for event in tick] for tick in ticks
    ]
    assert told == [
        [("answers", None)],
        [("answers", None)],
        [("answers", "p030"), ("answers", "p031"), ("small", "p100"), ("small", "p101")],
        [],
    ]
    first = ticks[0][0].metadata
    assert first[c.META_OBSERVED_PARTITIONS].value.endswith("p009 and 5 more")
    assert first[c.META_PROGRESS_BATCH_RUN].value == "run-answers-p000 and 14 more"
    assert "batchor_resume" in first[c.META_PROGRESS_HINT].value


def _news(world: World, run_id: str) -> list[dg.AssetObservation]:
    """Tell what is new of a batch run, and return it."""
    with (
        dg.build_resources(world.resources, instance=world.instance) as resources,
        open_runner(resources, None) as runner,
    ):
        told = list(progress_news.news_of(world.instance, runner, runner.get_run(run_id)))
    for one in told:
        world.instance.report_runless_asset_event(one)
    return told


def _change(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """Let the progress of every batch run say something else."""
    original = progress_news.progress_metadata

    def changed(*args: object) -> dict[str, object]:
        return {**original(*args), **{f"batchor/{k}": v for k, v in values.items()}}

    monkeypatch.setattr(progress_news, "progress_metadata", changed)


def _observed(result: dg.ExecuteInProcessResult) -> list[dg.DagsterEvent]:
    return [e for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]


def _texts(metadata: dict[str, dg.MetadataValue]) -> dict[str, str]:
    return {name: str(value.value) for name, value in metadata.items()}
