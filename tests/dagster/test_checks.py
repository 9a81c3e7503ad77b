"""The asset checks that come with a batch asset: when they are evaluated, and how they end."""

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg
import polars as pl
import pytest
from dagster import ExecuteInProcessResult

from batchor_core import ConfigurationError, RetryPolicy
from batchor_core.model.states import WaiterState
from batchor_dagster import BatchChecks, CheckThreshold, HoldKind, batch_asset, batchor_definitions
from batchor_dagster.asset.checks import check_results, check_specs, evaluations, with_all_checks
from batchor_dagster.asset.metadata import PartitionTotals
from batchor_dagster.constants import (
    META_COST_USD,
    META_ERROR_ABOVE,
    META_FAILURE_RATE,
    META_WARN_ABOVE,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    CheckName,
)
from batchor_dagster.waiting import hold
from batchor_dagster.waiting.hold import HoldRequest
from tests.dagster.world import DAYS, MODEL, ROWS, World, answers_asset, events, failure, rows_of

KEY = dg.AssetKey("answers")
REFUSED = {"kind": "line_error", "status": 400, "message": "Simulated refusal."}
ONE_ROW = {"match": {"prompt": "row 1;"}}
WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def evaluated(result: ExecuteInProcessResult, asset: str = "answers") -> dict[str, Any]:
    """The evaluations of a Dagster run, by the check's name."""
    found = [e.asset_check_evaluation_data for e in result.all_events if _is_evaluation(e)]
    return {e.check_name: e for e in found if e.asset_key.to_user_string() == asset}


def _is_evaluation(event: dg.DagsterEvent) -> bool:
    return event.event_type_value == "ASSET_CHECK_EVALUATION"


def history(world: World, name: str) -> list[tuple[str, str | None]]:
    """Status and partition of a check's executions, oldest first."""
    records = world.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(KEY, name), limit=50
    )
    return [(record.status.value, record.partition) for record in reversed(records)]


def test_request_evaluates_nothing_and_succeeds(world: World) -> None:
    """The user's run would fail for checks of answers that are not there yet."""
    answers = answers_asset()
    result = world.request(answers)

    assert result.success, failure(result)
    assert evaluated(result) == {}
    assert events(result) == ["ASSET_OBSERVATION"]
    assert world.open_waiters == 1


def test_sensor_s_run_evaluates_every_check_of_its_partition(world: World) -> None:
    """The checks would be there for show: no run of the sensor asks for them by name."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    assert request.asset_check_keys
    result = world.launch(request, answers)

    assert result.success, failure(result)
    found = evaluated(result)
    assert list(found) == ["rows_answered", "failure_rate", "invalid_output_rate"]
    assert all(e.passed and e.partition == "d0" for e in found.values())
    assert found["rows_answered"].description == "3 of 3 rows answered"
    assert found["failure_rate"].metadata[META_FAILURE_RATE].value == 0
    assert history(world, "failure_rate") == [("PLANNED", "d0"), ("SUCCEEDED", "d0")]


def test_evaluations_are_of_what_was_just_materialized(world: World) -> None:
    """The UI would show the checks as outdated from the first minute on."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    result = world.launch(request, answers)

    (record,) = world.instance.fetch_materializations(KEY, limit=5).records
    targets = {e.target_materialization_data.storage_id for e in evaluated(result).values()}
    assert targets == {record.storage_id}


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_waiting_asset_evaluates_them_itself(world: World, *, is_partitioned: bool) -> None:
    """A small job on the command line would go unchecked."""
    partition = "d0" if is_partitioned else None

    @batch_asset(model=MODEL, name="answers", partitions_def=DAYS if is_partitioned else None)
    def answers() -> pl.DataFrame:
        return rows_of("d0")

    world.request(answers, partition=partition)
    world.drive(answers)
    result = world.request(answers, partition=partition)  # the answers are there: delivered at once

    assert result.success, failure(result)
    assert {name: e.partition for name, e in evaluated(result).items()} == {
        "rows_answered": partition,
        "failure_rate": partition,
    }


def test_failed_rows_show_with_their_severity_and_fail_nothing(world: World) -> None:
    """Bad days would look like good ones, or a warning would turn a backfill red."""
    answers = answers_asset(
        max_failure_rate=1.0,
        checks=BatchChecks(failure_rate=CheckThreshold(warn_above=0.1, error_above=0.5)),
    )
    world.sim.faults(**ONE_ROW, **REFUSED)
    world.request(answers)
    (result,) = world.finish(answers)

    assert result.success
    found = evaluated(result)
    failed = {name: e.severity for name, e in found.items() if not e.passed}
    assert failed == {"rows_answered": WARN, "failure_rate": WARN}
    rate = found["failure_rate"]
    assert rate.description == ("1 of 3 rows failed (33.3%) (warning above 0.1, error above 0.5)")
    shown = {key: rate.metadata[key].value for key in (META_WARN_ABOVE, META_ERROR_ABOVE)}
    assert shown == {META_WARN_ABOVE: 0.1, META_ERROR_ABOVE: 0.5}
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]


def test_invalid_output_is_told_apart_from_other_failures(world: World) -> None:
    """A prompt that the model misreads would look like an outage."""
    answers = answers_asset(max_failure_rate=1.0, retries=RetryPolicy(delay_s=0, max_attempts=1))
    world.sim.faults(kind="invalid_json_answer", **ONE_ROW)
    world.request(answers)
    (result,) = world.finish(answers)

    invalid = evaluated(result)["invalid_output_rate"]
    assert (invalid.passed, invalid.severity) == (False, ERROR)
    assert "1 of 3 rows have invalid output (33.3%)" in invalid.description


def test_text_answers_have_no_output_to_be_invalid(world: World) -> None:
    """A check that can never fail would be shown on every asset."""
    names = {spec.name for spec in answers_asset(output=None).check_specs}
    assert names == {"rows_answered", "failure_rate"}


def test_blocking_check_stops_what_lies_downstream_and_is_final(world: World) -> None:
    """Bad answers would reach the mart, or the sensor would materialize them three times."""
    answers = answers_asset(
        max_failure_rate=1.0,
        checks=BatchChecks(failure_rate=CheckThreshold(error_above=0.1, blocking=True)),
    )

    @dg.asset(partitions_def=DAYS)
    def report(answers: pl.DataFrame) -> pl.DataFrame:
        return answers

    world.sim.faults(**ONE_ROW, **REFUSED)
    assert world.request(answers, report).success
    results = world.finish(answers, report)

    assert [result.success for result in results] == [False]
    assert "1 blocking asset check failed with ERROR severity" in failure(results[0])
    assert world.materialized() == ["d0"]
    assert world.materialized("report") == []
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "blocking asset check failed: failure_rate: 1 of 3 rows failed" in (waiter.reason or "")


def test_passing_blocking_check_lets_downstream_run(world: World) -> None:
    """A blocking check would stop every partition, the good ones too."""
    answers = answers_asset(
        checks=BatchChecks(rows_answered=CheckThreshold(error_above=0, blocking=True))
    )

    @dg.asset(partitions_def=DAYS)
    def report(answers: pl.DataFrame) -> pl.DataFrame:
        return answers

    assert world.request(answers, report).success
    (result,) = world.finish(answers, report)

    assert result.success, failure(result)
    assert world.materialized("report") == ["d0"]


def test_checks_can_be_switched_off(world: World) -> None:
    """A team with checks of its own would see everything twice."""
    answers = answers_asset(checks=None)
    assert list(answers.check_specs) == []
    world.request(answers)
    (result,) = world.finish(answers)
    assert result.success
    assert evaluated(result) == {}

    one = answers_asset(
        checks=BatchChecks(rows_answered=None, invalid_output_rate=None, cost_usd=None)
    )
    assert [spec.name for spec in one.check_specs] == ["failure_rate"]


def test_user_s_own_check_waits_for_the_answers(world: World) -> None:
    """It would run on data that is not there, and fail the request."""
    answers = answers_asset(checks=None)

    @dg.asset_check(asset=answers)
    def labels_are_known() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=world.table().height == ROWS)

    first = world.request(answers, labels_are_known)
    assert first.success, failure(first)
    assert evaluated(first) == {}
    world.drive(answers)
    second = world.request(answers, labels_are_known)

    assert second.success, failure(second)
    assert evaluated(second)["labels_are_known"].passed


def test_budget_of_the_asset_is_checked_without_being_repeated(world: World) -> None:
    """Users would have to write one number twice, and see no check if they forget."""
    answers = answers_asset(budget_usd=5.0)
    world.request(answers)
    (result,) = world.finish(answers)

    cost = evaluated(result)["cost_within_budget"]
    assert cost.passed
    assert cost.metadata[META_ERROR_ABOVE].value == 5.0
    (record,) = world.instance.fetch_materializations(KEY, limit=1).records
    assert record.asset_materialization is not None
    cost_usd = record.asset_materialization.metadata[META_COST_USD].value
    assert cost.metadata[META_COST_USD].value == cost_usd > 0


def test_unknown_cost_is_a_warning(world: World) -> None:
    """A model without a known price would pass every budget."""
    answers = answers_asset(
        model="no-such-model", checks=BatchChecks(cost_usd=CheckThreshold(error_above=1))
    )
    world.request(answers)
    (result,) = world.finish(answers)

    cost = evaluated(result)["cost_within_budget"]
    assert (cost.passed, cost.severity) == (False, WARN)
    assert "not known" in cost.description


def test_asset_with_a_prefix_given_later_keeps_its_checks(world: World) -> None:
    """``load_assets_from_modules(key_prefix=…)`` would give assets that fail at their checks."""
    answers = answers_asset().with_attributes(
        asset_key_replacements={KEY: dg.AssetKey(["mart", "answers"])}
    )
    assert world.request(answers).success
    (result,) = world.finish(answers)

    assert result.success, failure(result)
    assert len(evaluated(result, "mart/answers")) == 3


def test_hold_that_is_started_after_all_finds_its_asset(world: World) -> None:
    """A hold that slips through the queue would fail before it can say that it has nothing to do.

    Dagster refuses to load an asset whose checks are left out.
    """
    answers = answers_asset()
    asked = HoldRequest(
        instance=world.instance,
        run=world.request(answers).dagster_run,
        asset_keys=[KEY],
        partition_keys=["d0"],
    )
    held = hold._hold_run(asked, "a backfill", 0, HoldKind.QUEUED)
    definitions = batchor_definitions([answers], resources=world.resources)
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=held.asset_selection, asset_check_selection=held.asset_check_selection
    )

    assert job.asset_layer.selected_asset_keys == {KEY}


@pytest.mark.parametrize(
    "options",
    [
        {"warn_above": -1},
        {"warn_above": 2, "error_above": 1},
        {"warn_above": 1, "blocking": True},
    ],
)
def test_threshold_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """A check that was meant to stop bad answers would never do so."""
    with pytest.raises(ConfigurationError, match="CheckThreshold"):
        CheckThreshold(**options)


@pytest.mark.parametrize(
    ("rows", "ok", "asked", "severity"),
    [
        (10, 10, 10, None),
        (10, 8, 10, None),
        (9, 9, 10, ERROR),
        (11, 11, 10, ERROR),
        (0, 0, 0, None),
    ],
)
def test_row_without_an_outcome_is_an_error_whatever_the_bounds(
    rows: int, ok: int, asked: int, severity: dg.AssetCheckSeverity | None
) -> None:
    """A row that is lost would be booked as one that was merely not answered."""
    totals = PartitionTotals(rows=rows, ok=ok)
    lenient = {CheckName.ROWS_ANSWERED: CheckThreshold()}
    (result,) = check_results(KEY, lenient, totals, input_rows=asked, cost_usd=None)

    assert (None if result.passed else result.severity) == severity


def ranged(**options: Any) -> dg.AssetsDefinition:
    """A batch asset that answers many partitions in one Dagster run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        return answers_asset(backfill_policy=dg.BackfillPolicy.single_run(), **options)


D0_TO_D2 = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d2"}


def test_range_checks_each_of_its_partitions(world: World) -> None:
    """In a run of many partitions the last one's result would stand for all."""
    answers = ranged(
        max_failure_rate=1.0, checks=BatchChecks(failure_rate=CheckThreshold(warn_above=0.1))
    )
    world.sim.faults(match={"prompt": "d1 row 1;"}, **REFUSED)
    assert world.request(answers, partition=None, tags=D0_TO_D2).success
    results = world.finish(answers)

    assert [result.success for result in results] == [True]
    ended = sorted(one for one in history(world, "failure_rate") if one[0] != "PLANNED")
    assert ended == [("FAILED", "d1"), ("SUCCEEDED", "d0"), ("SUCCEEDED", "d2")]
    assert sorted(map(str, world.materialized())) == ["d0", "d1", "d2"]


def test_blocking_check_of_one_partition_is_final_for_the_range(world: World) -> None:
    """The whole range would be materialized again and again."""
    answers = ranged(
        max_failure_rate=1.0,
        checks=BatchChecks(failure_rate=CheckThreshold(error_above=0.1, blocking=True)),
    )
    world.sim.faults(match={"prompt": "d1 row 1;"}, **REFUSED)
    world.request(answers, partition=None, tags=D0_TO_D2)
    results = world.finish(answers)

    assert [result.success for result in results] == [False]
    assert sorted(map(str, world.materialized())) == ["d0", "d1", "d2"]
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "failure_rate of 'd1': 1 of 3 rows failed" in (waiter.reason or "")


def test_evaluations_name_their_partition(world: World) -> None:
    """Dagster books a plain result of a step of several partitions under none of them."""
    active = {CheckName.FAILURE_RATE: CheckThreshold(warn_above=0.1)}
    totals = {"d0": PartitionTotals(rows=4, ok=4), "d1": PartitionTotals(rows=4, ok=1)}

    def body(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield dg.MaterializeResult(asset_key=KEY)
        for partition in sorted(context.partition_keys):
            results = check_results(KEY, active, totals[partition], input_rows=4, cost_usd=None)
            yield from evaluations(results, active, partition)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.asset(
            output_required=False,
            partitions_def=DAYS,
            backfill_policy=dg.BackfillPolicy.single_run(),
            check_specs=check_specs(KEY, active, DAYS),
        )
        def answers(context: dg.AssetExecutionContext) -> Iterator[Any]:
            yield from with_all_checks(context, body(context))

    tags = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d1"}
    result = world.request(answers, partition=None, tags=tags)

    assert result.success, failure(result)
    assert sorted(history(world, "failure_rate")) == [("FAILED", "d1"), ("SUCCEEDED", "d0")]
