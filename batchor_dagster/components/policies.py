"""Dagster's policies and the asset checks of a batch asset, in YAML."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from batchor_dagster.asset.checks import BatchChecks, CheckThreshold
from batchor_dagster.components.fields import python_object, resolved


class SingleRun(dg.Model):
    """All partitions of a backfill in one Dagster run."""

    type: Literal["single_run"]


class MultiRun(dg.Model):
    """At most ``max_partitions_per_run`` partitions in one Dagster run."""

    type: Literal["multi_run"]
    max_partitions_per_run: int = Field(default=1, gt=0)


Backfills = Annotated[SingleRun | MultiRun, Field(discriminator="type")]


def read_backfill_policy(context: dg.ResolutionContext, value: Any) -> Any:
    """Return the backfill policy of a model or of an import path."""
    found = python_object(context, value)
    if isinstance(found, SingleRun):
        return dg.BackfillPolicy.single_run()
    if isinstance(found, MultiRun):
        return dg.BackfillPolicy.multi_run(found.max_partitions_per_run)
    return found


class StepRetries(dg.Model):
    """Dagster's retries of the request's step; ``delay`` in seconds."""

    max_retries: int = Field(default=1, ge=0)
    delay: float | None = Field(default=None, ge=0)


def read_step_retries(context: dg.ResolutionContext, value: Any) -> Any:
    """Return Dagster's retry policy."""
    found = resolved(context, value)
    return dg.RetryPolicy(**found.model_dump()) if isinstance(found, StepRetries) else found


class Bounds(dg.Model):
    """The bounds above which a check fails; see ``CheckThreshold``."""

    warn_above: float | None = None
    error_above: float | None = None
    blocking: bool = False


class Checks(dg.Model):
    """Asset checks with their bounds; null switches one off; see ``BatchChecks``."""

    rows_answered: Bounds | None = None
    failure_rate: Bounds | None = None
    invalid_output_rate: Bounds | None = None
    cost_usd: Bounds | None = None


def read_checks(context: dg.ResolutionContext, value: Any) -> Any:
    """Return the asset checks; None for ``false``."""
    found = resolved(context, value)
    if not isinstance(found, Checks):
        return None if found is False else found
    named = found.model_dump(exclude_unset=True)
    return BatchChecks(
        **{
            name: None if bounds is None else CheckThreshold(**bounds)
            for name, bounds in named.items()
        }
    )
