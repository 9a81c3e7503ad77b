"""A code location that is deployed anew, and anew, while its batches are in flight."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import batch_asset
from tests.dagster.world import MODEL, rows_of

KEYS = ["d0", "d1", "d2"]
ALL_DAYS = dg.StaticPartitionsDefinition(KEYS)
OTHER_DAYS = dg.StaticPartitionsDefinition(["d3", "d2", "d1"])  # one is gone; in another order
SINGLE_RUN = dg.BackfillPolicy.single_run()

BATCH_ASSETS = ("answers", "second", "deeper", "ranged", "calm")
SHARED = "both"  # by the answers and the second


@dataclass(kw_only=True)
class Mood:
    """What code does that was deployed once, and behaves another way by now.

    Attributes:
        flaky_fails: Whether the asset of this name raises.
        check_passes: Whether the blocking check of the answers passes.
    """

    flaky_fails: bool = False
    check_passes: bool = True


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What of the code location can change.

    Attributes:
        tickets: The plain asset upstream of the answers: as ``KINDS`` says.
        answers: The batch asset in the middle.
        report: A plain asset downstream of it.
        version: Of the prompt of the answers.
    """

    tickets: str = "there"
    answers: str = "there"
    report: str = "there"
    version: int = 0

    @property
    def names(self) -> set[str]:
        """The assets that are defined."""
        changing = {"tickets": self.tickets, "answers": self.answers, "report": self.report}
        names = {"second", "deeper", "ranged", "ranged_report", "flaky", SHARED, "calm"}
        names |= {name for name, kind in changing.items() if kind in ("there", "repartitioned")}
        return names | {f"new_{name}" for name, kind in changing.items() if kind == "renamed"}

    def days_of(self, name: str) -> dg.StaticPartitionsDefinition:
        """The partitions of an asset."""
        kinds = {"tickets": self.tickets, "answers": self.answers, "report": self.report}
        return OTHER_DAYS if kinds.get(name) == "repartitioned" else ALL_DAYS

    def runs(self, names: Sequence[str], keys: Sequence[str]) -> bool:
        """Whether Dagster runs assets together, for some partitions of theirs."""
        days = self.days_of(names[0])
        return (
            self.names.issuperset(names)
            and all(self.days_of(name) is days for name in names)
            and set(keys) <= set(days.get_partition_keys())
        )


KINDS = ("there", "renamed", "repartitioned", "gone")


@dataclass(kw_only=True)
class ChangingLocation:
    """Makes the definitions of a deployment, each once.

    Attributes:
        make: Of assets and other arguments of ``Definitions``.
        mood: See ``Mood``.
    """

    make: Callable[..., dg.Definitions]
    mood: Mood = field(default_factory=Mood)
    _made: dict[Deployment, dg.Definitions] = field(default_factory=dict)

    def definitions(self, deployment: Deployment) -> dg.Definitions:
        """Return what is deployed."""
        if deployment not in self._made:
            checks = [self._check()] if deployment.answers in ("there", "repartitioned") else []
            assets = self._assets(deployment)
            self._made[deployment] = self.make(*assets, asset_checks=checks)
        return self._made[deployment]

    def _assets(self, deployment: Deployment) -> Iterator[Any]:
        yield from _variant(_tickets, "tickets", deployment.tickets)
        answers = _answers(deployment.version, _name_of("tickets", deployment.tickets))
        yield from _variant(answers, "answers", deployment.answers)
        yield from _variant(self._plain("answers"), "report", deployment.report)
        yield _second("second", ALL_DAYS)
        yield _deeper("deeper", _name_of("answers", deployment.answers))
        yield self._plain("answers", "second")(SHARED, ALL_DAYS)
        yield self._plain("answers")("flaky", ALL_DAYS)
        yield _ranged("ranged", ALL_DAYS)
        yield _ranged_report()
        yield _second("calm", ALL_DAYS)

    def _plain(self, *deps: str) -> Callable[..., dg.AssetsDefinition]:
        def made(name: str, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
            @dg.asset(name=name, partitions_def=days, deps=list(deps))
            def plain() -> None:
                if name == "flaky" and self.mood.flaky_fails:
                    raise RuntimeError("flaky")

            return plain

        return made

    def _check(self) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset="answers", name="looks_right", blocking=True)
        def looks_right() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=self.mood.check_passes)

        return looks_right


def _variant(make: Callable[..., dg.AssetsDefinition], name: str, kind: str) -> Iterator[Any]:
    if kind == "gone":  # to another code location: whoever reads it still does
        yield dg.AssetSpec(name, partitions_def=ALL_DAYS)
    else:
        yield make(_name_of(name, kind), OTHER_DAYS if kind == "repartitioned" else ALL_DAYS)


def _name_of(name: str, kind: str) -> str:
    return f"new_{name}" if kind == "renamed" else name


def _tickets(name: str, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    @dg.asset(name=name, partitions_def=days)
    def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    return tickets


def _batch(name: str, days: dg.PartitionsDefinition[str], **options: Any) -> Callable[..., Any]:
    return batch_asset(
        **{
            "model": MODEL,
            "name": name,
            "partitions_def": days,
            "keep": {"prompt": pl.String},
            "retries": RetryPolicy(delay_s=0),
            **options,
        }
    )


def _answers(version: int, upstream: str) -> Callable[..., dg.AssetsDefinition]:
    def make(name: str, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
        @_batch(name, days, ins={"tickets": dg.AssetIn(upstream)})
        def answers(tickets: pl.DataFrame) -> pl.DataFrame:
            prefix = f"{name} v{version}: "
            return tickets.select(prompt=pl.lit(prefix) + pl.col("prompt"))

        return answers

    return make


def _second(name: str, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    @_batch(name, days)
    def second(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return prompts_of(name, context.partition_key)

    return second


def _deeper(name: str, upstream: str) -> dg.AssetsDefinition:
    @_batch(name, ALL_DAYS, ins={"answers": dg.AssetIn(upstream)})
    def deeper(answers: pl.DataFrame) -> pl.DataFrame:
        return answers.select(prompt=pl.lit("deeper, ") + pl.col("prompt"))

    return deeper


def _ranged(name: str, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    @_batch(name, days, backfill_policy=SINGLE_RUN)
    def ranged(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return prompts_of(name, context.partition_key)

    return ranged


def _ranged_report() -> dg.AssetsDefinition:
    @dg.asset(partitions_def=ALL_DAYS, deps=["ranged"], backfill_policy=SINGLE_RUN)
    def ranged_report() -> None: ...

    return ranged_report


def prompts_of(name: str, day: str) -> pl.DataFrame:
    """The prompts of a batch asset that has no input."""
    return rows_of(day).select(prompt=pl.lit(f"{name}: ") + pl.col("prompt"))
