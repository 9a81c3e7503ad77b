"""The hold's bookkeeping, on a real instance with run records that need no worker."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
)
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from batchor_dagster.constants import (
    TAG_BACKFILL,
    TAG_KIND,
    TAG_MAX_RETRIES,
    TAG_WAITING_FOR,
    WAITING_POOL,
    HoldKind,
)
from batchor_dagster.waiting import hold
from batchor_dagster.waiting.backfills import Backfills
from batchor_dagster.waiting.hold import (
    BackfillState,
    HoldRequest,
    HoldState,
    backfill_state,
    close_hold,
    find_hold,
    hold_id_for,
    hold_status,
    is_hold,
    open_or_join,
)

BACKFILL, REPOSITORY = "bfill", "__repository__@location"
ANSWERS, REPORT = AssetKey("answers"), AssetKey(["mart", "report"])
SUSPENDED_RUNS = pytest.mark.skipif(
    hold._RUN_SUSPENDED is None, reason="this Dagster has no suspended runs (1.13.26 has)"
)
HAZARDS = pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (
            {
                "run_coordinator": {
                    "module": "dagster.core.run_coordinator",
                    "class": "QueuedRunCoordinator",
                    "config": {"block_op_concurrency_limited_runs": {"enabled": False}},
                }
            },
            "block_op_concurrency_limited_runs",
        ),
        ({"concurrency": {"pools": {"op_granularity_run_buffer": 1}}}, "op_granularity_run_buffer"),
        (
            {
                "run_coordinator": {
                    "module": "dagster.core.run_coordinator",
                    "class": "DefaultRunCoordinator",
                }
            },
            "run queue",
        ),
    ],
)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """An instance on SQLite with one open backfill."""
    with DagsterInstance.local_temp() as instance:
        _add_backfill(instance, BACKFILL)
        yield instance


def test_opened_hold_is_queued_and_carries_what_the_backfill_reads(
    instance: DagsterInstance,
) -> None:
    """The backfill would end at once, or crash on a cancelled hold without a partition tag."""
    request = _request(instance, tags={"dagster/partition/day": "p0", ".dagster/grpc_info": "x"})
    outcome = open_or_join(request)

    assert outcome.hold is not None
    assert outcome.hold.created
    assert outcome.reason is None
    run = _run(instance, outcome.hold.run_id)
    assert run.status is DagsterRunStatus.QUEUED
    assert run.asset_selection == {ANSWERS, REPORT}
    assert run.run_op_concurrency is not None
    assert run.run_op_concurrency.root_key_counts == {WAITING_POOL: 1}
    assert instance.event_log_storage.get_concurrency_info(WAITING_POOL).slot_count == 0
    assert is_hold(run.tags)
    assert not is_hold(request.run.tags)
    assert run.tags[TAG_WAITING_FOR] == run.tags[TAG_BACKFILL] == BACKFILL
    assert run.tags[TAG_MAX_RETRIES] == "0"
    assert run.tags["dagster/partition"] == run.tags["dagster/partition/day"] == "p0"
    assert ".dagster/grpc_info" not in run.tags  # would have it terminated as its request's run


def test_second_request_joins_and_adds_its_partitions(instance: DagsterInstance) -> None:
    """Two holds of one backfill, or partitions that look missing while they wait."""
    first = open_or_join(_request(instance, partitions=["p0"]))
    second = open_or_join(_request(instance, partitions=["p1", "p2"]))

    assert first.hold is not None
    assert second.hold is not None
    assert second.hold.run_id == first.hold.run_id == hold_id_for(BACKFILL, REPOSITORY, 0)
    assert not second.hold.created
    assert len(_holds(instance)) == 1
    assert _planned(instance, ANSWERS) == ["p0", "p1", "p2"]
    assert _planned(instance, REPORT) == ["p0", "p1", "p2"]


def test_unpartitioned_assets_are_planned_without_a_partition(instance: DagsterInstance) -> None:
    """A planned partition that the asset does not have is an error on its page."""
    open_or_join(_request(instance, partitions=["p0"], unpartitioned_keys=[REPORT]))
    assert _planned(instance, ANSWERS) == ["p0"]
    assert _planned(instance, REPORT) == [None]


def test_each_code_location_of_a_backfill_has_a_hold(instance: DagsterInstance) -> None:
    """The first location that is done would close the hold while the other one waits."""
    first = open_or_join(_request(instance)).hold
    other = open_or_join(_request(instance, location_name="other")).hold
    assert first is not None
    assert other is not None
    assert first.run_id != other.run_id
    mine = Backfills(instance, REPOSITORY)
    assert mine.close_unneeded(mine.open_holds(), set()) == 1
    assert hold_status(instance, other.run_id).state is HoldState.OPEN


def test_requests_race_for_one_hold(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower of two requests fails, although the hold it wants is there."""
    open_or_join(_request(instance))
    run_id = hold_id_for(BACKFILL, REPOSITORY, 0)
    seen: list[str] = []
    real_get = instance.get_run_by_id

    def not_yet(wanted: str) -> DagsterRun | None:
        seen.append(wanted)
        return None if seen.count(run_id) == 1 and wanted == run_id else real_get(wanted)

    monkeypatch.setattr(instance, "get_run_by_id", not_yet)
    outcome = open_or_join(_request(instance))
    assert outcome.hold is not None
    assert outcome.hold.run_id == run_id
    assert not outcome.hold.created
    assert len(_holds(instance)) == 1


def test_next_generation_follows_a_finished_hold(instance: DagsterInstance) -> None:
    """Requests of a later level of the backfill would join a hold that holds nothing."""
    first = open_or_join(_request(instance)).hold
    assert first is not None
    assert close_hold(instance, first.run_id, "success", "served")
    second = open_or_join(_request(instance)).hold
    assert second is not None
    assert (first.generation, second.generation) == (0, 1)
    assert second.run_id == hold_id_for(BACKFILL, REPOSITORY, 1)
    found = find_hold(instance, BACKFILL, REPOSITORY)
    assert found is not None
    assert (found.run_id, found.generation, found.state) == (second.run_id, 1, HoldState.OPEN)


def test_request_after_a_terminated_hold_is_cancelled(instance: DagsterInstance) -> None:
    """A user who ended the hold would go on paying for requests that start later."""
    opened = open_or_join(_request(instance)).hold
    assert opened is not None
    instance.report_run_canceled(_run(instance, opened.run_id))
    outcome = open_or_join(_request(instance))
    assert outcome.cancelled
    assert outcome.hold is None
    assert hold_status(instance, opened.run_id).state is HoldState.CANCELLED


def test_request_after_a_hold_that_we_cancelled_goes_on(instance: DagsterInstance) -> None:
    """Cancelling some requests of a backfill would cancel all that start later."""
    opened = open_or_join(_request(instance)).hold
    assert opened is not None
    assert close_hold(instance, opened.run_id, "cancelled", "its requests were cancelled")
    assert hold_status(instance, opened.run_id).state is HoldState.RETIRED
    outcome = open_or_join(_request(instance))
    assert not outcome.cancelled
    assert outcome.hold is not None
    assert outcome.hold.generation == 1


def test_closing_twice_changes_nothing(instance: DagsterInstance) -> None:
    """Two sensor ticks would turn a success into a cancellation."""
    opened = open_or_join(_request(instance)).hold
    assert opened is not None
    assert close_hold(instance, opened.run_id, "success", "served")
    assert not close_hold(instance, opened.run_id, "cancelled", "again")
    assert hold_status(instance, opened.run_id).state is HoldState.SUCCEEDED
    assert not close_hold(instance, hold_id_for("other", REPOSITORY, 0), "success", "never opened")


def test_only_holds_are_closed(instance: DagsterInstance) -> None:
    """A wrong id would end a user's run."""
    run = instance.add_run(_request(instance).run)
    assert not close_hold(instance, run.run_id, "success", "not a hold")
    assert _run(instance, run.run_id).status is DagsterRunStatus.STARTED


def test_deleted_hold_is_missing_and_can_be_opened_again(instance: DagsterInstance) -> None:
    """A backfill would fail because somebody tidied up its queue."""
    opened = open_or_join(_request(instance)).hold
    assert opened is not None
    instance.delete_run(opened.run_id)
    assert find_hold(instance, BACKFILL, REPOSITORY) is None
    assert hold_status(instance, opened.run_id).state is HoldState.MISSING
    again = open_or_join(_request(instance)).hold
    assert again is not None
    assert again.created
    assert hold_status(instance, again.run_id).state is HoldState.OPEN


def test_record_whose_writer_died_is_queued_by_the_next_request(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run monitoring fails a run that was recorded and never queued."""
    with monkeypatch.context() as patched:
        patched.setattr(hold, "_start_waiting", lambda *_: None)
        opened = open_or_join(_request(instance)).hold
    assert opened is not None
    assert _run(instance, opened.run_id).status is DagsterRunStatus.NOT_STARTED
    open_or_join(_request(instance))
    assert _run(instance, opened.run_id).status is DagsterRunStatus.QUEUED


def test_without_an_origin_nothing_is_written(instance: DagsterInstance) -> None:
    """`dagster asset materialize` would leave an orphan run record behind."""
    request = _request(instance)
    bare = request.run._replace(remote_job_origin=None)
    outcome = open_or_join(
        HoldRequest(instance=instance, run=bare, asset_keys=[ANSWERS], partition_keys=["p0"])
    )
    assert outcome.hold is None
    assert "remote job origin" in str(outcome.reason)
    _assert_nothing_written(instance)


def test_without_a_backfill_there_is_neither_hold_nor_warning(instance: DagsterInstance) -> None:
    """Each run launched by hand would queue a hold, or warn about one it does not need."""
    request = _request(instance, backfill=None)
    assert open_or_join(request) == hold.HoldOutcome()
    _assert_nothing_written(instance)


def test_kind_none_opens_nothing(instance: DagsterInstance) -> None:
    """The user's choice would be ignored, or warned about at every request."""
    assert open_or_join(_request(instance, kind=HoldKind.NONE)) == hold.HoldOutcome()
    _assert_nothing_written(instance)


def test_missing_private_api_costs_the_hold_with_one_reason(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dagster release that renames a private name would break every request."""
    monkeypatch.setattr(hold, "_PRIVATE_API_ERROR", "cannot import name 'RunOpConcurrency'")
    outcome = open_or_join(_request(instance))
    assert outcome.hold is None
    assert not outcome.cancelled
    assert "RunOpConcurrency" in str(outcome.reason)
    _assert_nothing_written(instance)


@pytest.mark.parametrize("name", ["RunOpConcurrency", "DagsterEvent"])
def test_changed_private_api_leaves_no_orphan(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A record that never waits is failed by run monitoring, and its partitions with it."""

    class Changed:
        def __init__(self, **_: Any) -> None:
            raise TypeError("unexpected keyword argument")

        job_enqueue = __init__

    monkeypatch.setattr(hold, name, Changed)
    outcome = open_or_join(_request(instance))
    assert outcome.hold is None
    assert "TypeError" in str(outcome.reason)
    assert _holds(instance) == []


def test_failing_planned_events_keep_the_hold(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cosmetic failure would cost the backfill."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("storage is full")

    monkeypatch.setattr(hold, "AssetMaterializationPlannedData", fail)
    outcome = open_or_join(_request(instance))
    assert outcome.hold is not None
    assert "storage is full" in str(outcome.reason)


@SUSPENDED_RUNS
@HAZARDS
def test_settings_that_would_start_a_queued_hold(overrides: dict[str, Any], setting: str) -> None:
    """The queue would start the hold, which runs the user's step a second time."""
    with DagsterInstance.local_temp(overrides=overrides) as instance:
        _add_backfill(instance, BACKFILL)
        outcome = open_or_join(_request(instance))
        assert setting in str(outcome.reason)
        assert outcome.hold is not None
        assert _run(instance, outcome.hold.run_id).status is DagsterRunStatus.SUSPENDED
        assert open_or_join(_request(instance)).reason is None  # said once, by who opened it


@HAZARDS
def test_without_suspended_runs_such_settings_allow_no_hold(
    overrides: dict[str, Any], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older Dagster would start the hold."""
    monkeypatch.setattr(hold, "_RUN_SUSPENDED", None)  # as before Dagster 1.13.26
    with DagsterInstance.local_temp(overrides=overrides) as instance:
        _add_backfill(instance, BACKFILL)
        outcome = open_or_join(_request(instance))
        assert setting in str(outcome.reason)
        assert outcome.hold is None


def test_without_suspended_runs_the_hold_is_queued(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of an older Dagster would get no hold for a wish that it cannot grant."""
    monkeypatch.setattr(hold, "_RUN_SUSPENDED", None)
    outcome = open_or_join(_request(instance, kind=HoldKind.SUSPENDED))
    assert outcome.hold is not None
    assert "1.13.26" in str(outcome.reason)
    assert _run(instance, outcome.hold.run_id).status is DagsterRunStatus.QUEUED


@SUSPENDED_RUNS
def test_suspended_hold_opens_and_closes(instance: DagsterInstance) -> None:
    """The kind that a user chose would not work."""
    opened = open_or_join(_request(instance, kind=HoldKind.SUSPENDED)).hold
    assert opened is not None
    assert _run(instance, opened.run_id).status is DagsterRunStatus.SUSPENDED
    assert _run(instance, opened.run_id).run_op_concurrency is None
    assert close_hold(instance, opened.run_id, "success", "served")
    assert _run(instance, opened.run_id).status is DagsterRunStatus.SUCCESS


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (BulkActionStatus.REQUESTED, BackfillState.OPEN),
        (BulkActionStatus.CANCELING, BackfillState.CANCELLING),
        (BulkActionStatus.CANCELED, BackfillState.CANCELLING),
        (BulkActionStatus.FAILING, BackfillState.FAILED),
        (BulkActionStatus.FAILED, BackfillState.FAILED),
        (BulkActionStatus.COMPLETED_SUCCESS, BackfillState.ENDED),
        (BulkActionStatus.COMPLETED_FAILED, BackfillState.ENDED),
    ],
)
def test_backfill_state(
    instance: DagsterInstance, status: BulkActionStatus, expected: BackfillState
) -> None:
    """Batches of a cancelled backfill would run on, or those of a finished one be cancelled."""
    _add_backfill(instance, "other", status)
    assert backfill_state(instance, "other") is expected
    outcome = open_or_join(_request(instance, backfill="other"))
    assert outcome.cancelled is (expected is BackfillState.CANCELLING)
    assert (outcome.hold is not None) is (expected is BackfillState.OPEN)


def test_unknown_backfill(instance: DagsterInstance) -> None:
    """A tag that was copied by hand would open a hold that nobody closes."""
    assert backfill_state(instance, "gone") is BackfillState.UNKNOWN
    outcome = open_or_join(_request(instance, backfill="gone"))
    assert outcome.hold is None
    assert "'gone'" in str(outcome.reason)


def _request(
    instance: DagsterInstance,
    *,
    backfill: str | None = BACKFILL,
    partitions: list[str] | None = None,
    kind: HoldKind = HoldKind.QUEUED,
    tags: Mapping[str, str] | None = None,
    unpartitioned_keys: list[AssetKey] | None = None,
    location_name: str = "location",
) -> HoldRequest:
    partitions = ["p0"] if partitions is None else partitions
    location = RegisteredCodeLocationOrigin(location_name=location_name)
    origin = RemoteRepositoryOrigin(code_location_origin=location, repository_name="__repository__")
    backfill_tags = {} if backfill is None else {TAG_BACKFILL: backfill}
    run = DagsterRun(
        job_name="__ASSET_JOB",
        status=DagsterRunStatus.STARTED,
        asset_selection=frozenset([ANSWERS, REPORT]),
        tags={"dagster/partition": partitions[0], **backfill_tags, **(tags or {})},
        remote_job_origin=RemoteJobOrigin(repository_origin=origin, job_name="__ASSET_JOB"),
    )
    return HoldRequest(
        instance=instance,
        run=run,
        asset_keys=[ANSWERS, REPORT],
        partition_keys=partitions,
        kind=kind,
        unpartitioned_keys=unpartitioned_keys or (),
    )


def _add_backfill(
    instance: DagsterInstance,
    backfill_id: str,
    status: BulkActionStatus = BulkActionStatus.REQUESTED,
) -> None:
    backfill = PartitionBackfill(
        backfill_id=backfill_id,
        status=status,
        from_failure=False,
        tags={},
        backfill_timestamp=1.0,
        asset_selection=[ANSWERS, REPORT],
    )
    instance.add_backfill(backfill)


def _run(instance: DagsterInstance, run_id: str) -> DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def _holds(instance: DagsterInstance) -> list[DagsterRun]:
    return list(instance.get_runs(RunsFilter(tags={TAG_KIND: "hold"})))


def _planned(instance: DagsterInstance, key: AssetKey) -> list[str | None]:
    entries = instance.all_logs(
        hold_id_for(BACKFILL, REPOSITORY, 0), of_type=DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    )
    events = [entry.get_dagster_event() for entry in entries]
    return [event.partition for event in events if event.asset_key == key]


def _assert_nothing_written(instance: DagsterInstance) -> None:
    assert instance.get_runs() == []
    assert WAITING_POOL not in instance.event_log_storage.get_concurrency_keys()
