"""A day's tickets are read and summed up, without a key and without waiting."""

import pytest
from support_tickets.definitions import defs

from batchor_core.simulator import Simulator
from batchor_dagster.testing import materialize_batch_assets

# Dagster warns of its own beta parameters when it copies a sensor out of a defs folder.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `owners`")

DAY = "2026-11-03"


def test_a_day_is_read_and_summed_up(batchor_simulator: Simulator) -> None:
    """Who asks for the money back is counted, and every ticket is sent once."""
    batchor_simulator.answer({"wants_refund": False})
    batchor_simulator.answer({"category": "billing", "wants_refund": True}, containing="refund")
    result = materialize_batch_assets(
        defs(),
        selection=["tickets", "ticket_insights", "daily_summary"],
        partition_key=DAY,
        simulator=batchor_simulator,
    )
    tickets = result.table("tickets", DAY)
    asked_back = tickets.filter(
        tickets["subject"].str.contains("refund") | tickets["body"].str.contains("refund")
    ).height
    assert asked_back > 0
    assert result.table("daily_summary", DAY)["refunds"].sum() == asked_back
    assert result.table("ticket_insights", DAY)["item_id"].equals(tickets["ticket_id"])
    assert result.executed_requests == tickets.height
