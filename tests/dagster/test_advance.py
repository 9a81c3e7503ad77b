"""The advance sensor: it polls, and launches what is heavy, once at a time."""

import logging
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from batchor_core import BatchJob, BatchRunner, OpenAIProviderConfig
from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster.constants import ADVANCE_JOB, TAG_RUN_KEY
from batchor_dagster.sensors.advance_tick import AdvanceCursor
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR
from tests.dagster.world import KEY, MODEL, World, answers_asset, failure, rows_of

UNAUTHORIZED = {"kind": "http_error", "status": 401, "message": "Incorrect API key provided."}


@pytest.fixture
def answers() -> dg.AssetsDefinition:
    """A batch asset."""
    return answers_asset()


def test_working_batches_are_only_polled(world: World, answers: dg.AssetsDefinition) -> None:
    """A Dagster run would be started every few seconds for up to 24 hours."""
    world.request(answers)
    for _ in range(3):
        assert world.advance_tick(answers) == []
    assert world.batches == ["in_progress"]


def test_ended_batches_share_one_dagster_run(world: World, answers: dg.AssetsDefinition) -> None:
    """A run that takes seconds to start would be started for each partition."""
    for day in ("d0", "d1", "d2"):
        world.request(answers, partition=day)
    world.provider_works()
    (request,) = world.advance_tick(answers)

    config = request.run_config["ops"]["advance"]["config"]
    assert config["batch_runs"] == [run.run_id for run in world.runs]
    assert world.launch(request, answers).success
    assert {run.state for run in world.runs} == {"succeeded"}


def test_advance_run_disturbs_no_partition(world: World, answers: dg.AssetsDefinition) -> None:
    """Partitions would be shown as failed, or upstream data be loaded, only to collect."""
    world.request(answers)
    world.provider_works()
    (request,) = world.advance_tick(answers)
    result = world.launch(request, answers)

    assert result.job_def.name == ADVANCE_JOB
    assert result.get_asset_materialization_events() == []
    assert world.observations()[-1]["batchor/progress_rows_ok"] == 3


def test_nothing_is_launched_while_its_dagster_run_goes_on(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """The same batch run would be advanced by a new Dagster run with every tick."""
    world.request(answers)
    world.provider_works()
    (request,) = world.advance_tick(answers)
    assert world.advance_tick(answers) == []  # not even before its record appears

    _record(world, request, dg.DagsterRunStatus.STARTED)
    assert world.advance_tick(answers) == []


def test_dagster_run_that_ended_too_early_is_followed_by_another(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """Dagster skips a used run key for ever: the batch run would never be collected."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _record(world, first, dg.DagsterRunStatus.FAILURE)
    (second,) = world.advance_tick(answers)

    assert second.run_key != first.run_key
    assert second.run_config == first.run_config


def test_dagster_run_that_never_appeared_is_followed_by_another(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A daemon that died between tick and launch would leave the batch run alone for ever."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _age(world, 61)
    (second,) = world.advance_tick(answers)

    assert second.run_key != first.run_key


def test_silent_dagster_run_is_followed_by_another(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A worker that was killed without a word would hold its batch runs for ever."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _record(world, first, dg.DagsterRunStatus.STARTED)
    assert world.advance_tick(answers) == []
    _age(world, 170)
    assert world.advance_tick(answers) == []  # it may be at something that needs no lease
    _age(world, 20)
    (second,) = world.advance_tick(answers)

    assert second.run_key != first.run_key


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING])
def test_dagster_run_that_waits_is_not_followed_by_another(
    world: World, answers: dg.AssetsDefinition, status: dg.DagsterRunStatus
) -> None:
    """A queue that is jammed would be filled with hundreds of runs that all do the same."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _record(world, first, status)
    for _ in range(20 if status is dg.DagsterRunStatus.QUEUED else 1):
        assert world.advance_tick(answers) == []
        _age(world, 590)
        assert world.advance_tick(answers) == []


def test_dagster_run_that_never_starts_is_followed_by_another(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A worker that was lost on its way would keep its batch runs for ever, without monitoring."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _record(world, first, dg.DagsterRunStatus.STARTING)
    assert world.advance_tick(answers) == []
    _age(world, 601)
    (second,) = world.advance_tick(answers)

    assert second.run_key != first.run_key


def test_time_in_the_queue_is_not_held_against_a_dagster_run(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A run that has waited for an hour would be given up in the second in which it starts."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    run_id = _record(world, first, dg.DagsterRunStatus.QUEUED)
    assert world.advance_tick(answers) == []
    _age(world, 3600)
    run = world.instance.get_run_by_id(run_id)
    assert run is not None
    world.instance.delete_run(run_id)
    world.instance.add_run(run._replace(status=dg.DagsterRunStatus.STARTED))
    assert world.advance_tick(answers) == []


def test_deleted_dagster_run_is_followed_by_another(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """Whoever empties a jammed queue by hand would leave the batch runs alone for ever."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    run_id = _record(world, first, dg.DagsterRunStatus.QUEUED)
    assert world.advance_tick(answers) == []
    _age(world, 3600)
    world.instance.delete_run(run_id)
    (second,) = world.advance_tick(answers)

    assert second.run_key != first.run_key


def test_dagster_run_that_starts_too_late_harms_nothing(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A run that was given up would advance what another one is advancing."""
    world.request(answers)
    world.provider_works()
    (request,) = world.advance_tick(answers)
    lease = world.store.acquire_lease(world.run.run_id, "the other one", 60)
    assert lease is not None
    assert world.launch(request, answers).success
    assert world.run.state == "running"

    world.store.release_lease(lease)
    assert world.launch(request, answers).success
    assert world.run.state == "succeeded"


def test_slow_dagster_run_that_holds_its_lease_is_left_alone(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A long download would be fought over by a new Dagster run every few minutes."""
    world.request(answers)
    world.provider_works()
    (first,) = world.advance_tick(answers)
    _record(world, first, dg.DagsterRunStatus.STARTED)
    assert world.advance_tick(answers) == []
    _age(world, 3600)
    lease = world.store.acquire_lease(world.run.run_id, "worker", 60)
    assert lease is not None
    assert world.advance_tick(answers) == []


@pytest.mark.parametrize("cursor", ["no json", "[]", '{"version": 2, "launched": {}}', "{}", ""])
def test_unreadable_cursor_starts_over(
    world: World, answers: dg.AssetsDefinition, cursor: str
) -> None:
    """The sensor would fail with every tick until somebody resets it by hand."""
    world.request(answers)
    world.provider_works()
    world.cursor = cursor
    (request,) = world.advance_tick(answers)

    assert world.launch(request, answers).success
    assert world.run.state == "succeeded"


def test_rows_that_nobody_has_claimed_are_not_sent(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A request that died while it read its rows would be paid without anybody waiting."""
    with BatchRunner(world.folder / "state.sqlite3", world.folder / "artifacts") as runner:
        job = BatchJob(
            items=rows_of("d0"),
            provider_config=OpenAIProviderConfig(
                model=MODEL, base_url=world.sim.openai_base_url, api_key=KEY
            ),
        )
        orphan = runner.open(job).ingest()

    assert world.advance_tick(answers) == []
    assert world.materialize_tick(answers) == []
    assert world.batches == []
    assert world.store.get_run(orphan.run_id).state == "running"


def test_refused_account_pauses_the_run_and_says_why(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A revoked key would start a Dagster run with every tick, and nobody would be told."""
    world.request(answers)
    world.sim.faults(**UNAUTHORIZED)
    data = world.tick(ADVANCE_SENSOR, [answers])

    assert world.run.control == "pause"
    assert "Incorrect API key provided." in (world.run.control_reason or "")
    assert data.run_requests == []
    assert f"1 paused, as {world.run.run_id}: " in data.skip_message
    (event,) = data.asset_events
    assert event.partition == "d0"
    for text in (data.skip_message, event.metadata["batchor/progress_status"].value):
        assert "Incorrect API key provided." in text
    assert [waiter.state for waiter in world.waiters] == [WaiterState.OPEN]
    for _ in range(3):
        later = world.tick(ADVANCE_SENSOR, [answers])
        assert (later.run_requests, later.asset_events) == ([], [])  # told once


def test_request_that_is_refused_at_once_says_why(
    world: World, answers: dg.AssetsDefinition, capfd: pytest.CaptureFixture[str]
) -> None:
    """A green request would hide that nothing was sent."""
    world.sim.faults(**UNAUTHORIZED)
    result = world.request(answers)

    assert result.success
    assert world.run.control == "pause"
    assert "Incorrect API key provided." in world.observations()[-1]["batchor/progress_status"]
    assert f"batchor resume --run-id {world.run.run_id}" in capfd.readouterr().err
    assert world.batches == []
    assert world.advance_tick(answers) == []


def test_resumed_run_goes_on(world: World, answers: dg.AssetsDefinition) -> None:
    """A pause could only be ended by asking, and paying, again."""
    world.sim.faults(**UNAUTHORIZED)
    world.request(answers)
    world.sim.clear_faults()
    world.store.set_control(world.run.run_id, RunControlState.RUN, None)
    world.finish(answers)

    assert world.materialized() == ["d0"]


def test_batch_run_that_cannot_be_advanced_harms_no_other(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """One lost file would stop every partition of the location."""
    world.request(answers)
    world.request(answers, partition="d1")
    world.provider_works()
    (request,) = world.advance_tick(answers)
    lost = world.runs[0]
    for path in (world.folder / "artifacts" / "runs" / lost.run_id / "items").iterdir():
        path.unlink()
    world.launch(request, answers)

    assert world.runs[0].control == "pause"
    assert world.runs[1].state == "succeeded"
    world.serve(answers)
    assert world.materialized() == ["d1"]


def test_unknown_batch_run_fails_its_dagster_run_only(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """A green advance run would hide that it did nothing."""
    world.request(answers)
    world.provider_works()
    (request,) = world.advance_tick(answers)
    config: Any = request.run_config
    config["ops"]["advance"]["config"]["batch_runs"].insert(0, "run_gone")
    result = world.launch(request, answers)

    assert "could not advance run_gone" in failure(result)
    assert world.run.state == "succeeded"


def test_key_is_stored_nowhere(
    world: World,
    answers: dg.AssetsDefinition,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whoever may read state, artifacts, outputs or logs could spend the account's money."""
    with caplog.at_level(logging.DEBUG):
        world.sim.faults(times=1, **UNAUTHORIZED)
        world.request(answers)
        world.store.set_control(world.run.run_id, RunControlState.RUN, None)
        world.finish(answers)

    assert world.materialized() == ["d0"]
    assert _holders([world.folder]) == []
    logged = caplog.text + "".join(capfd.readouterr())
    assert "STEP_SUCCESS" in logged
    assert KEY not in logged


def _holders(folders: Iterable[Path]) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if KEY.encode() in path.read_bytes()]


def _record(world: World, request: dg.RunRequest, status: dg.DagsterRunStatus) -> str:
    """Leave the record of a Dagster run that was launched for a request; returns its id."""
    tags = {**request.tags, TAG_RUN_KEY: str(request.run_key)}
    run_id = str(uuid.uuid4())
    location = RegisteredCodeLocationOrigin("location")
    repository = RemoteRepositoryOrigin(code_location_origin=location, repository_name="repo")
    world.instance.add_run(
        dg.DagsterRun(
            job_name=ADVANCE_JOB,
            run_id=run_id,
            status=status,
            tags=tags,
            remote_job_origin=RemoteJobOrigin(repository_origin=repository, job_name=ADVANCE_JOB),
        )
    )
    return run_id


def _age(world: World, seconds: float) -> None:
    """Let what the cursor remembers have happened earlier."""
    cursor = AdvanceCursor.parse(world.cursor)
    launched = {
        key: entry.model_copy(
            update={"at": entry.at - seconds, "alive_at": entry.alive_at - seconds}
        )
        for key, entry in cursor.launched.items()
    }
    assert launched
    assert time.time() > seconds
    world.cursor = AdvanceCursor(launched=launched).model_dump_json()
