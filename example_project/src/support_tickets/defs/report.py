"""All days together: for the weekly meeting, and for whoever pays the provider's bill."""

import base64
import io

import dagster as dg
import polars as pl
from matplotlib.figure import Figure


@dg.asset(
    ins={"ticket_insights": dg.AssetIn(metadata={"allow_missing_partitions": True})},
    group_name="support",
    kinds={"polars"},
)
def report(ticket_insights: pl.LazyFrame) -> dg.MaterializeResult[pl.DataFrame]:
    """Tickets by category over all days, and what reading them has cost."""
    by_category = (
        ticket_insights.filter(pl.col("batch_status") == "ok")
        .group_by("category")
        .agg(
            pl.len().alias("tickets"),
            (pl.col("urgency") == "high").sum().alias("urgent"),
            pl.col("wants_refund").sum().alias("refunds"),
        )
        .sort("tickets", "category", descending=[True, False])
        .collect()
    )
    totals = ticket_insights.select(
        pl.len().alias("rows"),
        (pl.col("batch_status") == "failed").mean().alias("share_failed"),
        pl.col("batch_input_tokens").sum().alias("input_tokens"),
        pl.col("batch_output_tokens").sum().alias("output_tokens"),
        pl.col("batch_cost_usd").sum().round(6).alias("cost_usd"),
    ).collect()
    return dg.MaterializeResult(
        value=by_category,
        metadata={
            "report": dg.MetadataValue.md(_markdown(by_category)),
            "plot": dg.MetadataValue.md(_picture(by_category)),
            **totals.row(0, named=True),
        },
    )


def _markdown(frame: pl.DataFrame) -> str:
    """Return a frame as a Markdown table."""
    head = f"| {' | '.join(frame.columns)} |"
    rows = [f"| {' | '.join(map(str, row))} |" for row in frame.iter_rows()]
    return "\n".join([head, "|---" * frame.width + "|", *rows])


def _picture(frame: pl.DataFrame) -> str:
    """Return tickets by category as bars, in a Markdown text that carries the picture itself."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    rows = frame.reverse()  # the first bar is drawn at the bottom
    axes.barh(
        rows["category"].to_list(), rows["tickets"].to_list(), color="#9fb8d9", label="tickets"
    )
    axes.barh(rows["category"].to_list(), rows["urgent"].to_list(), color="#c8553d", label="urgent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    file = io.BytesIO()
    # Without the library's version in it, equal tickets make equal bytes.
    figure.savefig(file, format="png", dpi=100, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f"![Tickets by category](data:image/png;base64,{data})"
