"""The tickets as they come in: one file a day."""

import dagster as dg
import polars as pl

from support_tickets.settings import TICKETS

days = dg.DailyPartitionsDefinition(start_date="2026-11-01", end_date="2026-11-09")

COLUMNS = {
    "ticket_id": pl.String,
    "received_at": pl.Datetime,
    "channel": pl.String,
    "customer_plan": pl.String,
    "subject": pl.String,
    "body": pl.String,
}


@dg.asset(partitions_def=days, group_name="support", kinds={"csv", "polars"})
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """One day's support tickets, as the help desk exports them."""
    return pl.read_csv(TICKETS / f"{context.partition_key}.csv", schema=COLUMNS)
