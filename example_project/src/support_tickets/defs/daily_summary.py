"""A day in numbers."""

import dagster as dg
import polars as pl

from support_tickets.defs.tickets import days


@dg.asset(partitions_def=days, group_name="support", kinds={"polars"})
def daily_summary(ticket_insights: pl.LazyFrame) -> pl.DataFrame:
    """Tickets of a day by category and urgency, with those who want their money back."""
    return (
        ticket_insights.filter(pl.col("batch_status") == "ok")
        .group_by("category", "urgency")
        .agg(
            pl.len().alias("tickets"),
            pl.col("wants_refund").sum().alias("refunds"),
            (pl.col("sentiment") == "negative").mean().alias("share_negative"),
        )
        .sort("tickets", "category", "urgency", descending=[True, False, False])
        .collect()
    )
