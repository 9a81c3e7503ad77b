"""What can be said of one Dagster run of a batch asset, in the launchpad or in a run request."""

from typing import Literal

import dagster as dg
from pydantic import Field


class BatchRunConfig(dg.Config):
    """Configuration of one Dagster run of a batch asset; all of it can be left out.

    The fields of a ``config`` of the function's own stand beside these. A class that inherits from
    this one reads both. In a run's configuration: ``ops: <asset>: config: {refresh: all}``.

    Attributes:
        refresh: Which rows of a partition that was materialized before are asked again: ``changed``
            those that have changed or failed, ``failed`` only those that failed (the others keep
            their answers, whatever has changed in prompt or model), ``all`` all of them.
        wait: Whether the step itself waits for the answers, holding its worker; None: as declared.
        preview_rows: Ask so many rows, the first ones of the selected partitions, show their
            answers in an observation, and materialize nothing: to try out a prompt. The step waits
            for them. They are not asked again by whoever asks for the whole.
        dry_run: Read the rows, tell what they would cost, and send nothing.
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
