"""What a translator changes, and what of Dagster's own keywords reaches the asset."""

from datetime import timedelta
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_dagster import (
    BatchAssetTranslatorData,
    DagsterBatchorTranslator,
    batch_asset,
    build_batch_sensors,
)
from batchor_dagster.asset.declaration import declarations_of
from tests.dagster.world import DAYS, MODEL, Verdict, World, answers_asset, events, rows_of

WEEKDAYS = dg.StaticPartitionsDefinition(["mo", "tu"])


class Conventions(DagsterBatchorTranslator):
    """What a platform team wants of every batch asset."""

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        spec = super().get_asset_spec(data)
        return spec.replace_attributes(
            key=spec.key.with_prefix("llm"),
            group_name="language",
            tags={"model": data.declaration.model},
            owners=["team:llm"],
            kinds={"openai"},
            description=f"Asked of {data.declaration.provider}.",
            automation_condition=dg.AutomationCondition.eager(),
            deps=[*spec.deps, "glossary"],
        ).merge_attributes(metadata={"rows": 1})


class ByWeekday(DagsterBatchorTranslator):
    """Gives assets other partitions."""

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        return data.spec.replace_attributes(partitions_def=WEEKDAYS)


def _specs(**options: Any) -> dg.AssetSpec:
    (spec,) = answers_asset(**options).specs
    return spec


def test_translator_decides_what_the_asset_is() -> None:
    """A platform team could not hold its conventions over all batch assets."""
    spec = _specs(translator=Conventions(), tags={"tier": "1"}, deps=["tickets"], metadata={"a": 2})

    assert spec.key == dg.AssetKey(["llm", "answers"])
    assert spec.group_name == "language"
    assert spec.tags == {"model": MODEL, "dagster/kind/openai": ""}
    assert spec.owners == ["team:llm"]
    assert spec.kinds == {"openai"}
    assert spec.description == "Asked of openai."
    assert spec.automation_condition == dg.AutomationCondition.eager()
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"tickets", "glossary"}
    assert {"rows": 1, "a": 2}.items() <= spec.metadata.items()
    assert spec.partitions_def == DAYS


def test_translator_is_given_what_was_declared() -> None:
    """A convention could not depend on the model, the output or the function's own words."""
    seen: list[BatchAssetTranslatorData] = []

    class Spy(DagsterBatchorTranslator):
        def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
            seen.append(data)
            return super().get_asset_spec(data)

    _specs(translator=Spy(), group_name="llm", max_failure_rate=0.5)

    (data,) = seen
    assert data.declaration.output is Verdict
    assert data.declaration.max_failure_rate == 0.5
    assert data.spec.key == data.declaration.key == dg.AssetKey("answers")
    assert data.spec.group_name == "llm"
    assert data.spec.partitions_def == DAYS


def test_without_a_translator_nothing_is_changed() -> None:
    """The default translator would be a change of every asset."""
    assert _specs(translator=DagsterBatchorTranslator()) == _specs()


def test_asset_with_a_translated_key_is_asked_and_served_under_it(world: World) -> None:
    """The sensors would look for an asset of the old key, and cancel what it asks."""
    answers = answers_asset(translator=Conventions())
    request = world.request(answers)
    assert request.success
    assert events(request, "llm/answers") == []
    world.finish(answers)

    assert [waiter.asset for waiter in world.waiters] == ["llm/answers"]
    key = dg.AssetKey(["llm", "answers"])
    records = world.instance.fetch_materializations(key, limit=5).records
    assert [record.partition_key for record in records] == ["d0"]
    assert world.table("llm/answers").height == 3


def test_translated_partitions_are_those_that_the_sensors_know() -> None:
    """A sensor would end the wishes of partitions that it believes to be removed."""
    answers = answers_asset(translator=ByWeekday())
    (declaration,) = declarations_of([answers]).values()
    assert answers.partitions_def == WEEKDAYS
    assert declaration.partitions_def == WEEKDAYS


def test_sensors_target_the_translated_key() -> None:
    """Dagster would refuse the materialize sensor's run of an asset that it does not target."""
    answers = answers_asset(translator=Conventions())
    _, materialize = build_batch_sensors([answers])
    assert materialize.asset_selection is not None
    assert materialize.asset_selection.resolve([answers]) == {answers.key}


@pytest.mark.filterwarnings("ignore:.*owners.*:dagster.BetaWarning")
def test_keywords_of_dagster_reach_the_asset() -> None:
    """A user would set a policy, and Dagster would never hear of it."""
    fresh = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=24))
    retry = dg.RetryPolicy(max_retries=2, delay=7)

    @batch_asset(
        model=MODEL,
        key="answers",
        deps=["glossary"],
        partitions_def=DAYS,
        group_name="llm",
        description="Answers.",
        metadata={"a": 1},
        tags={"tier": "gold"},
        owners=["team:llm", "one@example.com"],
        kinds={"gpt"},
        io_manager_key="lake",
        automation_condition=dg.AutomationCondition.on_missing(),
        freshness_policy=fresh,
        retry_policy=retry,
        code_version="3",
        op_tags={"size": "small"},
        pool="llm_requests",
    )
    def named_otherwise(tickets: pl.DataFrame) -> pl.DataFrame:
        return tickets

    (spec,) = named_otherwise.specs
    assert spec.key == dg.AssetKey("answers")
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"tickets", "glossary"}
    assert spec.partitions_def == DAYS
    assert spec.group_name == "llm"
    assert spec.description == "Answers."
    assert spec.metadata["a"] == 1
    assert spec.tags["tier"] == "gold"
    assert spec.owners == ["team:llm", "one@example.com"]
    assert spec.kinds == {"gpt"}
    assert spec.automation_condition == dg.AutomationCondition.on_missing()
    assert spec.freshness_policy == fresh
    assert spec.code_version == "3"
    assert spec.skippable
    assert named_otherwise.op.retry_policy == retry
    assert named_otherwise.op.tags["size"] == "small"
    assert named_otherwise.op.pool == "llm_requests"
    assert named_otherwise.op.output_def_named("result").io_manager_key == "lake"


def test_rows_and_provider_stay_as_declared() -> None:
    """A translator that returns a bare spec would lose the recipe."""

    class Bare(DagsterBatchorTranslator):
        def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
            return dg.AssetSpec("bare")

    answers = batch_asset(model=MODEL, provider="gpt", translator=Bare(), name="answers")(
        lambda: rows_of("d0")
    )
    (declaration,) = declarations_of([answers]).values()
    assert (declaration.name, declaration.model, declaration.provider) == ("bare", MODEL, "gpt")
    assert answers.partitions_def is None
