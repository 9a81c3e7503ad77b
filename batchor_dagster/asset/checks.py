"""The asset checks that come with a batch asset: quality and cost of the answers.

The step that materializes evaluates them, from the same totals as its metadata. A request evaluates
none.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster import constants as c
from batchor_dagster.asset.metadata import MOST_EVENTS, PartitionTotals
from batchor_dagster.constants import CheckName

_SHOWN_FAILURES = 3


@dataclass(frozen=True, kw_only=True)
class CheckThreshold:
    """The bounds above which a check fails.

    Attributes:
        warn_above: Above this value the check fails as a warning; None: it never warns.
        error_above: Above this value the check fails as an error; None: it never does.
        blocking: Whether an error fails the Dagster run and keeps downstream assets from running.
            The answers are stored all the same.
    """

    warn_above: float | None = None
    error_above: float | None = None
    blocking: bool = False

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.warn_above, self.error_above) if bound is not None]
        if any(bound < 0 for bound in bounds) or bounds != sorted(bounds):
            raise ConfigurationError(
                f"{self!r}: give bounds of 0 or more, and warn_above below error_above"
            )
        if self.blocking and self.error_above is None:
            raise ConfigurationError(f"{self!r}: only an error blocks, so give error_above")

    def severity_of(self, value: float) -> dg.AssetCheckSeverity | None:
        """Return the severity with which a value fails; None if it passes."""
        if self.error_above is not None and value > self.error_above:
            return dg.AssetCheckSeverity.ERROR
        if self.warn_above is not None and value > self.warn_above:
            return dg.AssetCheckSeverity.WARN
        return None

    def __str__(self) -> str:
        told = {"warning": self.warn_above, "error": self.error_above}
        bounds = [f"{word} above {bound}" for word, bound in told.items() if bound is not None]
        return ", ".join(bounds) or "never fails"


@dataclass(frozen=True, kw_only=True)
class BatchChecks:
    """Which asset checks a batch asset has; None switches one off.

    Attributes:
        rows_answered: Bounds the number of input rows without a usable answer. A row without any
            outcome is an error, whatever the bounds.
        failure_rate: Bounds the share of failed rows, 0 to 1.
        invalid_output_rate: Bounds the share of rows whose answer does not satisfy the output
            model, 0 to 1. Only assets with an output model have it.
        cost_usd: Bounds a partition's cost in US dollars; an unknown cost is a warning. Without
            bounds, an error above the asset's ``budget_usd``; without a budget there is no such
            check.
    """

    rows_answered: CheckThreshold | None = CheckThreshold(warn_above=0)
    failure_rate: CheckThreshold | None = CheckThreshold(warn_above=0.01, error_above=0.05)
    invalid_output_rate: CheckThreshold | None = CheckThreshold(warn_above=0.01, error_above=0.05)
    cost_usd: CheckThreshold | None = CheckThreshold()

    def active(
        self, *, has_output: bool, budget_usd: float | None
    ) -> dict[CheckName, CheckThreshold]:
        """Return the thresholds of the checks that an asset has, in a fixed order.

        Args:
            has_output: Whether the asset has an output model.
            budget_usd: What one batch run may cost.
        """
        cost = self.cost_usd
        if cost == CheckThreshold():
            cost = None if budget_usd is None else CheckThreshold(error_above=budget_usd)
        thresholds = {
            CheckName.ROWS_ANSWERED: self.rows_answered,
            CheckName.FAILURE_RATE: self.failure_rate,
            CheckName.INVALID_OUTPUT_RATE: self.invalid_output_rate if has_output else None,
            CheckName.COST_WITHIN_BUDGET: cost,
        }
        return {name: threshold for name, threshold in thresholds.items() if threshold is not None}


ALL_CHECKS = BatchChecks()
"""The checks of an asset that sets none."""

_DESCRIPTIONS = {
    CheckName.ROWS_ANSWERED: "Every input row has an outcome and an answer; rows without one",
    CheckName.FAILURE_RATE: "Share of rows that failed",
    CheckName.INVALID_OUTPUT_RATE: "Share of rows whose answer does not satisfy the output model",
    CheckName.COST_WITHIN_BUDGET: "What the answers of a partition cost, in US dollars",
}


def check_specs(
    key: dg.AssetKey,
    active: Mapping[CheckName, CheckThreshold],
    partitions_def: dg.PartitionsDefinition[Any] | None,
) -> list[dg.AssetCheckSpec]:
    """Return the specs of an asset's checks; they are evaluated for each partition."""
    with warnings.catch_warnings():
        # In preview at Dagster; without it, a backfill shows the checks of its last day only.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name.value,
                asset=key,
                description=f"{_DESCRIPTIONS[name]}: {threshold}.",
                blocking=threshold.blocking,
                partitions_def=partitions_def,
            )
            for name, threshold in active.items()
        ]


def check_results(
    key: dg.AssetKey,
    active: Mapping[CheckName, CheckThreshold],
    totals: PartitionTotals,
    *,
    input_rows: int,
    cost_usd: float | None,
) -> list[dg.AssetCheckResult]:
    """Evaluate the checks of one partition, or of an asset without partitions.

    Args:
        key: The asset.
        active: Its checks.
        totals: The totals of the result rows.
        input_rows: How many rows were asked.
        cost_usd: What they cost; None if that is unknown.
    """
    measured = {
        CheckName.ROWS_ANSWERED: _rows_answered(totals, input_rows),
        CheckName.FAILURE_RATE: _share(totals.failed, totals.rows, "failed"),
        CheckName.INVALID_OUTPUT_RATE: _share(totals.invalid, totals.rows, "have invalid output"),
        CheckName.COST_WITHIN_BUDGET: _cost(cost_usd),
    }
    return [measured[name].result(key, name, threshold) for name, threshold in active.items()]


def evaluations(
    results: Iterable[dg.AssetCheckResult],
    active: Mapping[CheckName, CheckThreshold],
    partition: str,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Return check results as evaluations of one partition, in a step that covers several.

    Dagster takes a plain result for one of the step as a whole, and shows it at no partition.
    """
    for result in results:
        assert result.asset_key is not None
        assert result.check_name is not None
        yield dg.AssetCheckEvaluation(
            asset_key=result.asset_key,
            check_name=result.check_name,
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            blocking=active[CheckName(result.check_name)].blocking,
            partition=partition,
        )


def unanswered(
    key: dg.AssetKey,
    active: Mapping[CheckName, CheckThreshold],
    partitions: Sequence[str],
    reason: str,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Return failed ``rows_answered`` checks for partitions that no Dagster run will materialize.

    Args:
        key: The asset.
        active: Its checks; if ``rows_answered`` is off, nothing is returned.
        partitions: Empty for an asset without partitions.
        reason: Why the partitions are not materialized.
    """
    if CheckName.ROWS_ANSWERED not in active:
        return
    is_many = len(partitions) > MOST_EVENTS
    about = f"{partitions[0]!r} to {partitions[-1]!r}: {reason}" if is_many else reason
    for partition in (None,) if is_many or not partitions else partitions:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CheckName.ROWS_ANSWERED.value,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=about,
            partition=partition,
        )


def blocking_failures(
    results: Iterable[dg.AssetCheckResult | dg.AssetCheckEvaluation],
    active: Mapping[CheckName, CheckThreshold],
) -> str | None:
    """Return the blocking checks for which Dagster will fail the step, as text; None if none."""
    failures = [
        f"{_named(result)}: {result.description}"
        for result in results
        if not result.passed
        and result.severity is dg.AssetCheckSeverity.ERROR
        and active[CheckName(str(result.check_name))].blocking
    ]
    if not failures:
        return None
    shown = failures[:_SHOWN_FAILURES]
    more = f"; and {len(failures) - len(shown)} more" if len(failures) > len(shown) else ""
    return f"blocking asset check failed: {'; '.join(shown)}{more}"


def _named(result: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> str:
    partition = result.partition if isinstance(result, dg.AssetCheckEvaluation) else None
    return f"{result.check_name} of {partition!r}" if partition else str(result.check_name)


def with_all_checks(context: dg.AssetExecutionContext, events: Iterable[Any]) -> Iterator[Any]:
    """Pass on a step's events; mark the checks that it does not evaluate as skipped.

    Dagster needs an output for each check of an executed asset, also if the asset's own output is
    skipped. It shows a check whose output has no evaluation as skipped.
    """
    evaluated: set[str | None] = set()
    for event in events:
        yield event
        if isinstance(event, dg.MaterializeResult):
            evaluated.update(result.check_name for result in event.check_results or ())
    for output_name, spec in context.assets_def.check_specs_by_output_name.items():
        if spec.name not in evaluated:
            yield dg.Output(None, output_name=output_name)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A measured value, to be compared with a threshold.

    Attributes:
        value: None if it is not known: a warning.
        text: The description of the check result.
        metadata: The metadata of the check result.
        is_broken: Whether the check fails as an error whatever the threshold.
    """

    value: float | None
    text: str
    metadata: Mapping[str, Any]
    is_broken: bool = False

    def result(
        self, key: dg.AssetKey, name: CheckName, threshold: CheckThreshold
    ) -> dg.AssetCheckResult:
        bounds = {
            c.META_WARN_ABOVE: threshold.warn_above,
            c.META_ERROR_ABOVE: threshold.error_above,
        }
        severity = self._severity(threshold)
        return dg.AssetCheckResult(
            passed=severity is None,
            asset_key=key,
            check_name=name.value,
            severity=severity or dg.AssetCheckSeverity.ERROR,
            description=self.text if severity is None else f"{self.text} ({threshold})",
            metadata={
                **self.metadata,
                **{bound: value for bound, value in bounds.items() if value is not None},
            },
        )

    def _severity(self, threshold: CheckThreshold) -> dg.AssetCheckSeverity | None:
        if self.is_broken:
            return dg.AssetCheckSeverity.ERROR
        if self.value is None:
            return dg.AssetCheckSeverity.WARN
        return threshold.severity_of(self.value)


def _rows_answered(totals: PartitionTotals, input_rows: int) -> _Measured:
    lost = input_rows - totals.rows
    text = f"{totals.ok} of {input_rows} rows answered"
    return _Measured(
        value=input_rows - totals.ok,
        text=f"{text}, {abs(lost)} {'without an outcome' if lost > 0 else 'too many'}"
        if lost
        else text,
        metadata={c.META_ROWS: input_rows, c.META_ROWS_OK: totals.ok},
        is_broken=lost != 0,
    )


def _share(count: int, rows: int, what: str) -> _Measured:
    share = count / rows if rows else 0.0
    key = c.META_FAILURE_RATE if what == "failed" else c.META_INVALID_OUTPUT_RATE
    return _Measured(
        value=share,
        text=f"{count} of {rows} rows {what} ({share:.1%})",
        metadata={key: share, c.META_ROWS: rows},
    )


def _cost(cost_usd: float | None) -> _Measured:
    if cost_usd is None:
        return _Measured(value=None, text="the cost is not known", metadata={})
    return _Measured(
        value=cost_usd, text=f"{cost_usd:.4f} US dollars", metadata={c.META_COST_USD: cost_usd}
    )
