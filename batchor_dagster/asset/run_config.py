"""The configuration of one Dagster run of a batch asset, as for the launchpad."""

from typing import Literal

import dagster as dg
from pydantic import Field


class BatchRunConfig(dg.Config):
    """Configuration of one Dagster run of a batch asset; every field is optional.

    The fields of the function's own ``config`` stand beside these; a class that inherits from this
    one has both. In the run configuration: ``ops: <asset>: config: {refresh: all}``.

    Attributes:
        refresh: Which rows of a materialized partition to ask again. ``changed``: rows that have
            changed or failed; ``failed``: only failed rows (the others keep their answers, whatever
            has changed in prompt or model); ``all``: all rows.
        wait: Whether the step itself waits for the answers, holding its worker; None: as declared.
        preview_rows: Ask this many of the first rows of the selected partitions, show the answers
            in an observation, and materialize nothing: to try out a prompt. The step waits for the
            answers. A later request reuses them.
        dry_run: Read the rows, show the estimated cost in an observation, and send nothing.
    """

    refresh: Literal["changed", "failed", "all"] = Field(
        default="changed", description="Rows that are asked again: changed, failed or all."
    )
    wait: bool | None = Field(
        default=None, description="Whether the step itself waits for the answers."
    )
    preview_rows: int | None = Field(
        default=None, gt=0, description="Show the answers to so many first rows, store nothing."
    )
    dry_run: bool = Field(default=False, description="Tell the cost and send nothing.")
