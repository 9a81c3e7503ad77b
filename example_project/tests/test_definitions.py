"""The project loads, and its assets do what they say without any provider."""

import base64
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from support_tickets.definitions import defs
from support_tickets.defs.daily_summary import daily_summary
from support_tickets.defs.insights import ProductProblem, TicketInsights
from support_tickets.defs.report import report
from support_tickets.defs.tickets import days, tickets

from batchor_dagster import BatchParquetIOManager

# Dagster warns of its own beta parameters when it copies a sensor out of a defs folder, and reads
# YAML with a function of Pydantic's first version.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Parameter `owners`"),
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
]

ASSETS = {"tickets", "ticket_insights", "reply_drafts", "daily_summary", "report"}


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    """Load the definitions as Dagster does."""
    return defs().get_repository_def()


def test_everything_is_found(repository: dg.RepositoryDefinition) -> None:
    """Each asset and both sensors are there once, and every resource is bound."""
    dg.Definitions.validate_loadable(defs())
    keys = repository.asset_graph.get_all_asset_keys()
    assert {key.to_user_string() for key in keys} == ASSETS
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "batchor_advance_sensor",
        "batchor_materialize_sensor",
    }


@pytest.mark.parametrize("day", days.get_partition_keys())
def test_every_day_has_tickets(day: str, tmp_path: Path) -> None:
    """Each day's file can be read, its ids are unique, and no ticket is empty."""
    result = dg.materialize(
        [tickets],
        partition_key=day,
        resources={"io_manager": BatchParquetIOManager(base_path=str(tmp_path))},
    )
    frame = result.output_for_node("tickets")
    assert frame.height >= 25
    assert frame["ticket_id"].is_unique().all()
    assert (frame["body"].str.len_chars() > 0).all()
    assert (frame["received_at"].dt.date().cast(pl.String) == day).all()


def test_summaries_count_what_was_answered() -> None:
    """Failed rows are left out of the counts, and their share is reported."""
    frame = pl.LazyFrame([_row("billing"), _row("billing"), _row("login"), _failed_row()])
    assert daily_summary(frame)["tickets"].to_list() == [2, 1]
    result = report(frame)
    assert result.metadata["share_failed"] == 0.25
    assert "| billing | 2 | 2 | 2 |" in result.metadata["report"].value


def test_plot_is_a_small_picture_and_the_same_each_time() -> None:
    """The picture is stored with every materialization, so it has to stay small."""
    frame = pl.LazyFrame([_row("billing"), _row("login"), _failed_row()])
    first, second = (report(frame).metadata["plot"].value for _ in range(2))
    head, _, data = first.removesuffix(")").partition(";base64,")
    assert head == "![Tickets by category](data:image/png"
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert len(first) < 100_000
    assert first == second


def _row(category: str) -> dict[str, object]:
    answer = TicketInsights(
        category=category,
        urgency="high",
        sentiment="negative",
        summary="Was charged twice and wants one payment back.",
        products=[ProductProblem(name="account", problem="charged twice")],
        wants_refund=True,
        customer_name=None,
    )
    usage = {"batch_input_tokens": 200, "batch_output_tokens": 50, "batch_cost_usd": 0.0001}
    return {"batch_status": "ok", **answer.model_dump(), **usage}


def _failed_row() -> dict[str, object]:
    return {**dict.fromkeys(_row("other")), "batch_status": "failed"}
