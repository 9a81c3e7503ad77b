"""Backfills that end in success, after retries, and by being cancelled, in one ``dagster dev``."""

from collections import Counter

import polars as pl
import pytest

from tests.e2e.answers_story import (
    FLAKY,
    FLAKY_TICKETS,
    LONGER_THAN_TWO_TICKS_S,
    ORPHANED,
    STOPPED,
    STRAIGHT,
    Story,
    hold_of,
)
from tests.e2e.dagster_dev import BackfillWait
from tests.e2e.still_provider import KEY

ROWS = 6
ANSWERED = [*STRAIGHT, *FLAKY]
COLUMNS = {
    "item_id": pl.String(),
    "text": pl.String(),
    "amount": pl.Float64(),
    "category": pl.String(),
    "urgency": pl.Int64(),
    "customer": pl.Struct({"name": pl.String(), "tags": pl.List(pl.String())}),
    "refund": pl.Float64(),
    "batch_status": pl.String(),
    "batch_error_code": pl.String(),
    "batch_error_message": pl.String(),
    "batch_output_text": pl.String(),
    "batch_finish_reason": pl.String(),
    "batch_attempts": pl.Int32(),
    "batch_reused": pl.Boolean(),
    "batch_model": pl.String(),
    "batch_input_tokens": pl.Int64(),
    "batch_cached_input_tokens": pl.Int64(),
    "batch_output_tokens": pl.Int64(),
    "batch_reasoning_tokens": pl.Int64(),
    "batch_cost_usd": pl.Float64(),
    "batch_provider_batch_id": pl.String(),
    "batch_request_id": pl.String(),
}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


def test_backfill_stays_open_for_as_long_as_the_provider_works(story: Story) -> None:
    """Dagster would end the backfill as failed while its answers are being paid for."""
    assert story.looks[-1].seconds > LONGER_THAN_TWO_TICKS_S - 5
    assert {look.status for look in story.looks} == {"REQUESTED"}
    assert {look.hold for look in story.looks} == {"QUEUED"}
    for wait in (story.straight, story.flaky):
        assert {entry.status for entry in wait.timeline[:-1]} <= {"REQUESTED"}


def test_waiting_holds_no_worker(story: Story) -> None:
    """A slot and a process would be held for up to 24 hours for each partition."""
    for look in story.looks:
        assert look.batches >= len(STRAIGHT) + len(FLAKY)
        assert look.runs == ["SUCCESS"] * len(STRAIGHT)
    calm = [look for look in story.looks if look.is_calm]
    assert len(calm) > 10
    assert [look.active for look in calm] == [[]] * len(calm)


def test_waiting_partitions_are_shown_as_materializing(story: Story) -> None:
    """The asset's page would show partitions as missing that are being answered."""
    for look in story.looks:
        assert look.materializing >= set(ANSWERED)
    assert story.looks[-1].materializing >= set(ORPHANED)  # by a hold that was opened again


@pytest.mark.parametrize(("name", "days"), [("straight", STRAIGHT), ("flaky", FLAKY)])
def test_backfill_ends_in_success(story: Story, name: str, days: list[str]) -> None:
    """A backfill whose partitions all materialized, downstream included, would not be green."""
    wait: BackfillWait = getattr(story, name)
    backfill = wait.backfill
    assert backfill.status == "COMPLETED_SUCCESS", wait.timeline
    materialized = {asset: counts.materialized for asset, counts in backfill.assets.items()}
    count = len(days)
    expected = {"tickets": count, "answers": count, "digest": count, "overview": 1}
    assert materialized == expected
    assert {run.status for run in backfill.runs} == {"SUCCESS"}


def test_downstream_gets_the_answers(story: Story) -> None:
    """Assets behind a batch asset would be skipped, or run before the answers are there."""
    for day in ANSWERED:
        assert story.table("digest", day)["len"].sum() == ROWS
        assert story.event("digest", day).run_id == story.event("answers", day).run_id
    overviews = story.materializations["overview"]
    assert len(overviews) == 3  # one for each backfill that came to its end
    assert any(set(event.metadata["days"]) >= set(STRAIGHT) for event in overviews)


def test_every_ticket_is_executed_once(story: Story) -> None:
    """Rows would be paid twice, or not be asked at all."""
    assert story.ledger["paid_twice"] == []
    for days in (STRAIGHT, FLAKY):
        paid = Counter((e["run"], e["row"]) for e in story.executions(days) if e["billed"])
        assert len(paid) == ROWS * len(days)
        assert set(paid.values()) == {1}
    assert len(story.executions(STRAIGHT)) == ROWS * len(STRAIGHT)


def test_each_partition_is_a_typed_table_in_input_order(story: Story) -> None:
    """Downstream code would break on columns that come, go or change their type."""
    for day in ANSWERED:
        table, asked = story.table("answers", day), story.table("tickets", day)
        assert dict(table.schema) == COLUMNS
        assert table["item_id"].to_list() == asked["ticket_id"].to_list()
        assert table.select("text", "amount").equals(asked.select("text", "amount"))
        assert table["batch_status"].to_list() == ["ok"] * ROWS
        assert set(table["category"]) == {"billing"}
        assert table["customer"].struct.field("name").null_count() == 0


def test_only_what_failed_is_sent_again(story: Story) -> None:
    """A provider's hiccup would fail a row, or have the whole partition paid again."""
    attempts = {
        row["item_id"]: row["batch_attempts"]
        for day in ANSWERED
        for row in story.table("answers", day).iter_rows(named=True)
    }
    assert {item for item, tries in attempts.items() if tries == 2} == FLAKY_TICKETS
    assert {tries for item, tries in attempts.items() if item not in FLAKY_TICKETS} == {1}
    assert len(story.executions(FLAKY)) == ROWS * len(FLAKY) + len(FLAKY_TICKETS)


def test_metadata_tells_rows_tokens_and_cost(story: Story) -> None:
    """Cost and quality would not be visible where a data team looks for them."""
    for day in STRAIGHT:
        table, metadata = story.table("answers", day), story.event("answers", day).metadata
        assert metadata["dagster/partition_row_count"] == ROWS
        assert metadata["batchor/rows"] == metadata["batchor/rows_ok"] == ROWS
        assert metadata["batchor/rows_failed"] == 0
        assert metadata["batchor/input_tokens"] == table["batch_input_tokens"].sum() > 0
        assert metadata["batchor/output_tokens"] == table["batch_output_tokens"].sum() > 0
        assert metadata["batchor/cost_usd"] == pytest.approx(table["batch_cost_usd"].sum())
        assert metadata["batchor/cost_usd"] > 0
        assert metadata["batchor/saving_usd"] == pytest.approx(metadata["batchor/cost_usd"])
        assert [c["name"] for c in metadata["dagster/column_schema"]] == list(COLUMNS)
        assert metadata["dagster/uri"].endswith(f"/out/answers/{day}.parquet")
        previewed = [str(value) for row in metadata["batchor/preview"] for value in row.values()]
        assert any(f"{day} ticket 2 about billing" in text for text in previewed)
        assert metadata["openai.gpt-4.1-mini.calls"] == ROWS


def test_progress_is_observed(story: Story) -> None:
    """Nobody could tell from the asset's page which batch run a partition waits for."""
    for day in (*ANSWERED, *STOPPED):
        (run,) = story.batch_runs([day])
        seen = [event.metadata for event in story.observations if event.partition == day]
        assert {metadata["batchor/progress_batch_run"] for metadata in seen} == {run.run_id}
        assert seen[-1]["batchor/progress_rows_in_flight"] == ROWS


def test_cancelled_backfill_cancels_its_batches(story: Story) -> None:
    """The provider would go on working, and charging, for a backfill that nobody wants."""
    assert story.stopped.backfill.status == "CANCELED"
    assert story.stopped.backfill.error is None
    assert story.batches(STOPPED) == ["cancelled"] * len(STOPPED)
    assert not any(entry["billed"] for entry in story.executions(STOPPED))


def test_cancelled_backfill_leaves_nothing_open(story: Story) -> None:
    """Its partitions could not be asked for again, or would materialize against the user's will."""
    assert [run.state for run in story.batch_runs(STOPPED)] == ["cancelled"] * len(STOPPED)
    assert [w.state for w in story.waiters(STOPPED)] == ["cancelled"] * len(STOPPED)
    assert hold_of(story.stopped.backfill).status == "CANCELED"
    for asset in ("answers", "digest"):
        assert not {e.partition for e in story.materializations[asset]} & set(STOPPED)


def test_key_is_stored_nowhere(story: Story) -> None:
    """Whoever may read state, artifacts, outputs or logs could spend the account's money."""
    files = [path for root in (story.folder, story.home) for path in root.rglob("*")]
    holders = [path for path in files if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holders == []
    assert any(path.name == "dagster_dev.log" for path in files)
