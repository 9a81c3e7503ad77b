"""What the sensors do, and what they leave, while hundreds of partitions wait."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from batchor_core.integration import Waiter, Walk
from batchor_core.model.states import RunControlState, WaiterState
from batchor_core.testing.http_counting import CountingProxy
from batchor_dagster import OpenAIBatchResource
from batchor_dagster.constants import TAG_BACKFILL
from batchor_dagster.sensors import advance_tick, materialize_tick
from batchor_dagster.waiting import cancellation
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from batchor_dagster.waiting.time_box import TimeBox
from tests.dagster.crowd import Crowd, counted_statements, crowded_asset, small_asset
from tests.dagster.world import KEY, World

FINISHED = dg.DagsterRunStatus.SUCCESS
WORKING = dg.DagsterRunStatus.STARTED


def keys(first: int, last: int) -> list[str]:
    """Return partition keys, the last one excluded."""
    return [f"p{n:03}" for n in range(first, last)]


@pytest.fixture
def answers() -> dg.AssetsDefinition:
    """A batch asset with hundreds of partitions."""
    return crowded_asset()


@pytest.fixture
def proxy(world: World) -> Iterator[CountingProxy]:
    """What counts the calls to the provider."""
    with CountingProxy(world.sim.base_url) as opened:
        url = f"{opened.base_url}/v1"
        world.resources["openai"] = OpenAIBatchResource(api_key=KEY, base_url=url)
        yield opened


@pytest.mark.parametrize("sensor", [ADVANCE_SENSOR, MATERIALIZE_SENSOR])
def test_idle_tick_costs_the_same_for_few_and_for_many(
    world: World, answers: dg.AssetsDefinition, sensor: str
) -> None:
    """Ten thousand waiting partitions would take all of a sensor's time, for nothing."""
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 20))
    world.tick(sensor, [answers])
    with counted_statements() as few:
        world.tick(sensor, [answers])
    crowd.add(*keys(20, 200))
    with counted_statements() as many:
        data = world.tick(sensor, [answers])
    assert data.run_requests == []
    assert many == few
    assert "20" in data.skip_message  # 201 wait


def test_polls_are_list_calls(
    world: World, answers: dg.AssetsDefinition, proxy: CountingProxy
) -> None:
    """A provider would be asked once for each of ten thousand batches, every half minute."""
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 220))
    crowd.make_due()
    lines = len(proxy._lines)
    with counted_statements() as counts:
        assert world.advance_tick(answers) == []
    calls = [line.split(b" HTTP")[0] for line in proxy._lines[lines:]]
    assert [call.partition(b"?")[0] for call in calls] == [b"GET /v1/batches"] * 3
    assert counts["store"] < 60  # none for each batch


def test_what_ended_is_advanced_and_nothing_else(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A tick would launch all that wait, or leave out what has ended."""
    crowd = Crowd(world, answers)
    run_ids = crowd.add(*keys(0, 120))
    ended = [run_ids[3], run_ids[70], run_ids[119]]
    for run_id in ended:
        (submission,) = world.store.list_submissions(run_id)
        world.sim.state.openai.cancel_batch(submission.provider_batch_id or "")
    crowd.make_due()
    (request,) = world.advance_tick(answers)
    assert request.run_config["ops"]["advance"]["config"]["batch_runs"] == ended
    assert world.advance_tick(answers) == []


def test_advancing_many_takes_turns_with_its_own_runs(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick would ask for hundreds of Dagster runs, or never come to the last of them."""
    assert advance_tick.RUN_REQUESTS_PER_TICK == 50
    monkeypatch.setattr(advance_tick, "RUN_REQUESTS_PER_TICK", 2)
    monkeypatch.setattr(advance_tick, "ADVANCES_AT_ONCE", 3)
    monkeypatch.setattr(advance_tick, "BATCH_RUNS_PER_ADVANCE", 2)
    crowd = Crowd(world, answers)
    run_ids = crowd.add(*keys(0, 9))
    world.provider_works()
    crowd.make_due()
    expected = [crowd.seed.run_id, *run_ids]
    asked: list[str] = []
    for number in (2, 1, 0):  # what is asked for is still at work
        requests = world.advance_tick(answers)
        assert len(requests) == number
        crowd.record(requests, WORKING)
        asked += _batch_runs(requests)
    assert asked == expected[:6]


def test_full_scope_is_not_tried_with_every_tick(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of Dagster runs would be started, to find that there is no room yet."""
    crowd = Crowd(world, answers)
    run_ids = crowd.add(*keys(0, 30), is_sent=False)
    requests = world.advance_tick(answers)
    assert _batch_runs(requests) == run_ids
    crowd.record(requests, FINISHED)  # and nothing was sent
    assert world.advance_tick(answers) == []

    with monkeypatch.context() as patch:
        patch.setattr(advance_tick, "FULL_SCOPE_SECONDS", 0.0)
        (again,) = world.advance_tick(answers)
    assert _batch_runs([again]) == run_ids[:20]
    crowd.record([again], FINISHED)
    assert world.advance_tick(answers) == []
    crowd.add("p100")  # something changed in the scope
    assert _batch_runs(world.advance_tick(answers)) == run_ids


def test_all_are_served_fifty_at_a_time(world: World, answers: dg.AssetsDefinition) -> None:
    """The daemon would be held for minutes, or a partition be forgotten or served twice."""
    crowd = Crowd(world, answers)
    crowd.close(*crowd.add(*keys(0, 120)))
    ticks_of_keys = []
    while requests := world.materialize_tick(answers):
        ticks_of_keys.append([request.partition_key for request in requests])
        crowd.record(requests, FINISHED)
    assert ticks_of_keys == [keys(0, 50), keys(50, 100), keys(100, 120)]
    assert world.open_waiters == 1  # the one whose batch run goes on


@pytest.mark.parametrize("small_one", ["asset", "backfill"])
def test_small_backfill_does_not_wait_for_a_big_one(
    world: World, answers: dg.AssetsDefinition, small_one: str
) -> None:
    """Three partitions would wait for hours until ten thousand others are materialized."""
    small = small_asset()
    crowd = Crowd(world, answers)
    crowd.close(*crowd.add(*keys(0, 110), backfill="big"))
    if small_one == "asset":
        crowd.close(*crowd.add(*keys(200, 203), asset="small", backfill="big"))
    else:
        crowd.close(*crowd.add(*keys(200, 203), backfill="little"))
    requests = world.materialize_tick(answers, small)
    turns = [request.partition_key for request in requests]
    assert turns[:6] == ["p000", "p200", "p001", "p201", "p002", "p202"]
    assert turns[6:] == keys(3, 47)
    assert {r.tags[TAG_BACKFILL] for r in requests} == (
        {"big"} if small_one == "asset" else {"big", "little"}
    )


def test_dagster_queue_is_not_filled_by_one_backfill(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """Dagster starts its runs one after another: a later asset would stand behind thousands."""
    small = small_asset()
    crowd = Crowd(world, answers)
    crowd.close(*crowd.add(*keys(0, 80)))
    first = world.materialize_tick(answers, small)
    crowd.record(first, WORKING)
    assert len(first) == 50
    assert world.materialize_tick(answers, small) == []
    crowd.close(*crowd.add("p200", asset="small"))
    (request,) = world.materialize_tick(answers, small)
    assert request.partition_key == "p200"


def test_cancelled_backfill_ends_at_once_among_many(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on being paid until all that wait were looked at in turns."""
    monkeypatch.setattr(cancellation, "WAITERS_PER_TURN", 2)
    _add_backfill(world, "stopped", BulkActionStatus.CANCELED)
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 9))
    stopped = crowd.add(*keys(9, 16), backfill="stopped")
    assert world.materialize_tick(answers) == []
    assert [w.run_id for w in world.waiters if w.state is WaiterState.CANCELLED] == stopped
    assert {world.store.get_run(run_id).control for run_id in stopped} == {RunControlState.CANCEL}
    assert world.open_waiters == 10


def test_terminated_request_is_found_at_once_among_many(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who terminates a run would see it go on being paid for minutes."""
    monkeypatch.setattr(cancellation, "WAITERS_PER_TURN", 1)
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 6))
    result = world.request(answers, partition="p300")
    crowd.add(*keys(6, 9))
    world.materialize_tick(answers)
    run = world.instance.get_run_by_id(result.run_id)
    assert run is not None
    world.instance.report_run_canceled(run)
    world.materialize_tick(answers)
    (ended,) = [w for w in world.waiters if w.state is WaiterState.CANCELLED]
    assert ended.partitions == ("p300",)


def test_every_waiter_has_its_turn(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is gone would be waited for, for ever, behind many others."""
    monkeypatch.setattr(cancellation, "WAITERS_PER_TURN", 3)
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 4), "gone", *keys(5, 8))  # after the first one
    world.materialize_tick(answers)
    assert world.open_waiters == 9
    world.materialize_tick(answers)
    (ended,) = [w for w in world.waiters if w.state is WaiterState.CANCELLED]
    assert ended.reason == "partition 'gone' of 'answers' is not defined any more"
    for _ in range(2):  # begins with the oldest again
        world.materialize_tick(answers)
    cursor = materialize_tick.MaterializeCursor.parse(world.cursors[MATERIALIZE_SENSOR])
    assert cursor.after is None


@pytest.mark.parametrize("cursor", ["no json", "[]", '{"version": 2}', '{"after": "w_gone"}', ""])
def test_unreadable_cursor_starts_over(
    world: World, answers: dg.AssetsDefinition, cursor: str
) -> None:
    """The sensor would fail with every tick, or look at nothing, until it is reset by hand."""
    crowd = Crowd(world, answers)
    crowd.add("gone")
    crowd.close(*crowd.add("p000"))
    world.cursors[MATERIALIZE_SENSOR] = cursor
    (request,) = world.materialize_tick(answers)
    crowd.record([request], FINISHED)
    world.materialize_tick(answers)
    assert request.partition_key == "p000"
    assert [w.state.value for w in world.waiters] == ["open", "cancelled", "served"]


class Interrupted(TimeBox):
    """A time box that is over after it was looked at so often."""

    looks = 4

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self._left = self.looks

    @property
    def is_over(self) -> bool:
        """Whether it is."""
        self._left -= 1
        return self._left < 0


def test_tick_that_runs_out_of_time_goes_on_with_the_next(
    world: World, answers: dg.AssetsDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A big cancel would be stopped by Dagster in the middle, and begin anew for ever."""
    monkeypatch.setattr(cancellation, "TimeBox", Interrupted)
    monkeypatch.setattr(materialize_tick, "TimeBox", Interrupted)
    _add_backfill(world, "stopped", BulkActionStatus.CANCELED)
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 10), backfill="stopped")
    crowd.close(*crowd.add(*keys(20, 26)))
    left, asked = [], []
    for _ in range(6):
        requests = world.materialize_tick(answers)
        asked += [request.partition_key for request in requests]
        crowd.record(requests, FINISHED)
        left.append(sum(w.payload["backfill"] == "stopped" for w in _open(world)))
    assert left[0] in range(5, 10)
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert asked == keys(20, 26)


def test_poll_goes_on_where_it_was_cut_off(
    world: World, answers: dg.AssetsDefinition, proxy: CountingProxy
) -> None:
    """The oldest of ten thousand batches would never be looked at, since the list begins anew."""
    crowd = Crowd(world, answers)
    crowd.add(*keys(0, 120))
    crowd.make_due()
    (submission,) = world.store.list_submissions("run-answers-p060")
    position = submission.provider_batch_id or ""
    walk = Walk(position=position, since=datetime(2026, 1, 1, tzinfo=UTC))
    cut_off = advance_tick.AdvanceCursor(walks={crowd.submission.account: walk})
    world.cursor = cut_off.model_dump_json()
    before = len(proxy._lines)
    world.advance_tick(answers)
    (call,) = proxy._lines[before:]
    assert f"after={position}".encode() in call
    assert advance_tick.AdvanceCursor.parse(world.cursor).walks == {}
    still_due = world.store.due_polls(crowd.submission.account, datetime.now(UTC), 1000)
    assert {one.run_id for one in still_due} >= {f"run-answers-{key}" for key in keys(60, 120)}


def _batch_runs(requests: Sequence[dg.RunRequest]) -> list[str]:
    return [
        run_id
        for request in requests
        for run_id in request.run_config["ops"]["advance"]["config"]["batch_runs"]
    ]


def _open(world: World) -> list[Waiter]:
    return [waiter for waiter in world.waiters if waiter.state is WaiterState.OPEN]


def _add_backfill(world: World, backfill_id: str, status: BulkActionStatus) -> None:
    world.instance.add_backfill(
        PartitionBackfill(
            backfill_id=backfill_id,
            status=status,
            from_failure=False,
            tags={},
            backfill_timestamp=1.0,
            asset_selection=[dg.AssetKey("answers")],
            partition_names=["p000"],
        )
    )
