"""What a user reads who clicks through a backfill in Dagster's UI, in a real browser."""

import re

import pytest

from tests.browser.story import Story

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WAITING = ("3", "3", "0", "0")
DONE = ("3", "0", "3", "0")
_COUNTS = r"\n{asset}\n\d+% completed\n(\S+)\n(\S+)\n(\S+)\n(\S+)"


def counts(text: str, asset: str) -> tuple[str, ...]:
    """An asset's line on a backfill's page: targeted, in progress, succeeded, failed."""
    found = re.search(_COUNTS.format(asset=asset), text)
    assert found, text
    return found.groups()


def value(text: str, key: str) -> str:
    """What is shown beside a metadata key."""
    found = re.search(rf"\n{re.escape(key)}\s+([^\n]+)", text)
    assert found, text
    return found[1]


def test_lineage_tells_what_a_batch_asset_is(story: Story) -> None:
    """Nobody would see which asset asks a model, or that it brings checks."""
    text = story.pages["lineage"]
    assert text.count("\nOpenAI\n") == 2  # one declared in Python, one in YAML
    assert text.count("\nllm\n") == 2
    assert text.count("\n0 / 3 Passed\n") == 2


def test_backfill_is_in_progress_while_the_provider_works(story: Story) -> None:
    """The backfill would look finished, or failed, long before there is an answer."""
    text = story.pages["backfill waiting"]
    assert "Status\nIn progress\n" in text
    assert counts(text, "tickets") == DONE
    assert counts(text, "ticket_insights") == WAITING
    assert counts(text, "daily_summary") == WAITING
    assert counts(text, "reply_drafts") == WAITING


def test_only_the_hold_is_left_of_the_runs(story: Story) -> None:
    """Workers would wait for the provider, or a user would take the hold for a stuck run."""
    text = story.pages["runs waiting"]
    assert text.count("\nQueued\n") == 1
    assert "\nbatchor/kind: hold\n" in text
    assert re.search(r"\nbatchor/waiting_for: \w+\n", text)
    assert not re.search(r"\n(Started|Failure|Canceled)\n", text)


def test_partitions_show_as_materializing(story: Story) -> None:
    """Who looks at the asset would launch the same days once more."""
    text = story.pages["partitions waiting"]
    assert "Materializing (3)" in text
    assert "Missing (5)" in text
    assert "Failed (0)" in text


def test_progress_can_be_read(story: Story) -> None:
    """Who waits would not know for what, nor where."""
    text = story.pages["progress"]
    rows = value(text, "batchor/progress_rows")
    assert int(rows) > 0
    assert value(text, "batchor/progress_rows_in_flight") == rows
    assert value(text, "batchor/progress_status") == "running"
    assert re.search(r'"batch_\w+"', text)


def test_partition_shows_its_rows_its_cost_and_its_head(story: Story) -> None:
    """One would have to open the Parquet file to see what came of the money."""
    text = story.pages["partition"]
    assert value(text, "dagster/partition_row_count") == value(text, "batchor/rows_ok") == "34"
    assert float(value(text, "batchor/cost_usd")) > 0
    assert float(value(text, "batchor/saving_usd")) > 0
    assert re.search(r'"batch_\w+"', text)
    head = r"\nitem_id\treceived_at\tchannel\t.*wants_refund\tcustomer_name\n"
    assert re.search(head + r"(T-\d+\t2026-11-02 .*\n){5}", text)


def test_columns_are_described_by_the_output_model(story: Story) -> None:
    """The model would read descriptions that the readers of its answers do not see."""
    text = story.pages["columns"]
    assert re.search(r"\ncategory\s+string\s+The main reason for writing\.\n", text)
    assert re.search(r"\nwants_refund\s+bool\s+Whether money is asked back", text)


def test_cost_is_plotted_over_the_partitions(story: Story) -> None:
    """A day that was dear would not stand out."""
    assert "\nbatchor/cost_usd\n" in story.pages["plots"]
    assert story.plots > 0


def test_checks_are_green_and_say_why(story: Story) -> None:
    """A check that tells nothing would be switched off."""
    text = story.pages["checks"]
    assert text.count("\nSucceeded\n") == 3
    assert "\nEvaluation result\nPassed\n" in text
    assert re.search(r"\n0 of \d+ rows failed \(0\.0%\)", text)


def test_launchpad_explains_what_a_run_can_be_told(story: Story) -> None:
    """Nobody would find ``dry_run`` without the docs."""
    text = story.pages["launchpad"]
    for key in ("dry_run", "preview_rows", "refresh", "wait"):
        assert key in text
    assert "Tell the cost and send nothing." in " ".join(text.split())


def test_dry_run_from_the_launchpad_costs_nothing_but_tells_the_cost(story: Story) -> None:
    """Money would be spent by who wants to know how much it would be."""
    text = story.pages["estimate"]
    assert value(text, "batchor/estimated_rows") == "34"
    assert float(value(text, "batchor/estimated_cost_usd")) > 0
    before, after = story.executed
    assert before == after > 0


def test_dry_run_hides_no_results(story: Story) -> None:
    """The page of a partition would show what might be in the place of what is."""
    before, after = story.pages["partition"], story.pages["partition after the dry run"]
    for key in ("batchor/rows_ok", "batchor/cost_usd", "batchor/model"):
        assert value(after, key) == value(before, key)


def test_backfill_ends_in_success_with_what_lies_downstream(story: Story) -> None:
    """The backfill would be red, or end before the report was there."""
    text = story.pages["backfill done"]
    assert "Status\nSucceeded\n" in text
    for asset in ("tickets", "ticket_insights", "daily_summary", "reply_drafts"):
        assert counts(text, asset) == DONE
    assert re.search(r"\nreport\n100% completed\n", text)


def test_lineage_shows_what_was_done(story: Story) -> None:
    """Who looks at the whole in the morning would not see that all went well."""
    text = story.pages["lineage done"]
    assert text.count("\n3 / 3 Passed\n") == 2
    assert text.count("\n37% filled\n") == 4  # three of eight days


def test_report_carries_its_picture(story: Story) -> None:
    """The plot in the metadata would be a broken picture."""
    assert story.plot_width > 300
    assert re.search(
        r"\ncategory\ttickets\turgent\trefunds\n\w+\t\d+\t\d+\t\d+\n", story.pages["report"]
    )
