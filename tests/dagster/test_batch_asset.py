"""What ``@batch_asset`` refuses when a project is loaded, and which functions it takes."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from pydantic import BaseModel

from batchor_core import BatchItem, ConfigurationError, PromptParts
from batchor_core.errors import ResultSchemaError, SchemaNotSupportedError
from batchor_dagster import (
    BatchorResource,
    OpenAIBatchResource,
    batch_asset,
    batchor_definitions,
    build_batch_sensors,
)
from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.asset.options import BatchAssetOptions, options_in
from batchor_dagster.constants import ADVANCE_JOB
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.dagster.world import DAYS, MODEL, ROWS, Verdict, World, failure, rows_of


def _any_rows() -> pl.DataFrame:
    return rows_of("d0")


class Untyped(BaseModel):
    """A model with a field that a strict schema cannot describe."""

    scores: Any


class Clashing(BaseModel):
    """A model with a field that is one of our columns."""

    batch_status: str


class Style(dg.ConfigurableResource[Any]):
    """A user's resource."""

    prefix: str


class Size(dg.Config):
    """A user's config."""

    count: int = 2


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "schema": ({"output": Untyped}, SchemaNotSupportedError, "scores"),
    "clash with our columns": ({"output": Clashing}, ResultSchemaError, "'batch_status'"),
    "clash with a kept column": (
        {"output": Verdict, "keep": {"label": pl.String}},
        ResultSchemaError,
        "'label'",
    ),
    "column type": ({"keep": {"text": "no such type"}}, ResultSchemaError, "no such type"),
    "both prompts": (
        {"prompt_template": "{text}", "build_prompt": lambda item: "x"},
        ConfigurationError,
        "not both",
    ),
    "failure rate above 1": ({"max_failure_rate": 1.5}, ConfigurationError, "from 0 to 1"),
    "failure rate below 0": ({"max_failure_rate": -0.1}, ConfigurationError, "from 0 to 1"),
    "no time to wait": ({"max_wait_hours": 0}, ConfigurationError, "max_wait_hours of .* above 0"),
    "wait for ever": ({"max_wait_hours": float("inf")}, ConfigurationError, "give hours above 0"),
    "resource in place of its key": (
        {"provider": OpenAIBatchResource()},
        ConfigurationError,
        r"provider of 'answers' is an object \(OpenAIBatchResource\): give the key",
    ),
    "resource key with a dash": (
        {"provider": "openai-eu"},
        ConfigurationError,
        "name the resource 'openai_eu'",
    ),
    "misspelt option": (
        {"max_failure_rat": 0.2},
        ConfigurationError,
        "no option 'max_failure_rat': did you mean 'max_failure_rate'",
    ),
    "unknown option": ({"colour": 1}, ConfigurationError, "no option 'colour': see docs/options"),
    "key and name": ({"key": "a"}, ConfigurationError, "not both"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_when_the_project_is_loaded(case: str) -> None:
    """The mistake would show in a night's run, after everything upstream was computed."""
    options, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        batch_asset(**{"model": MODEL, "name": "answers", **options})(_any_rows)


def test_bare_decorator_is_refused_in_words() -> None:
    """A forgotten pair of brackets would read as an error of ours."""
    with pytest.raises(ConfigurationError, match="keywords alone, as @batch_asset"):
        batch_asset(_any_rows)  # type: ignore[call-arg]  # the mistake


def test_help_tells_every_option() -> None:
    """Whoever asks Python or an editor for the options would learn none of them."""
    assert batch_asset.__doc__ is not None
    for option in options_in(BatchAssetOptions):
        assert f"    {option.name}: " in batch_asset.__doc__
        assert option.name in inspect.signature(batch_asset).parameters


def test_asset_is_an_ordinary_one() -> None:
    """What other tools read of an asset (key, docs, kinds, group) would be lost."""

    @batch_asset(
        model=MODEL, key_prefix=["mart"], group_name="llm", metadata={"a": 1}, partitions_def=DAYS
    )
    def answers(tickets: pl.DataFrame) -> pl.DataFrame:
        """What the model says."""
        return tickets

    (spec,) = answers.specs
    assert spec.key == dg.AssetKey(["mart", "answers"])
    assert spec.description == "What the model says."
    assert spec.kinds == {"llm", "openai"}
    assert spec.group_name == "llm"
    assert spec.metadata["a"] == 1
    assert spec.partitions_def == DAYS
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("tickets")]


def test_other_assets_are_passed_over() -> None:
    """A location would have to keep a list of its batch assets beside its assets."""

    @dg.asset
    def plain() -> None: ...

    @dg.graph_asset
    def from_a_graph() -> Any:
        @dg.op
        def make() -> int:
            return 1

        return make()

    answers = batch_asset(model=MODEL, name="answers")(_any_rows)
    others = [
        plain,
        from_a_graph,
        dg.AssetSpec("elsewhere"),
        dg.AssetsDefinition(specs=[dg.AssetSpec("ext")]),
    ]
    sensors = build_batch_sensors([answers, *others])

    assert list(declarations_of([answers, *others])) == ["answers"]
    assert [sensor.name for sensor in sensors] == [ADVANCE_SENSOR, MATERIALIZE_SENSOR]


def test_definitions_bundle_what_the_assets_need() -> None:
    """A user who forgets a sensor or the job has assets that never materialize."""
    answers = batch_asset(model=MODEL, name="answers")(_any_rows)
    resources = {"batchor": BatchorResource(), "openai": OpenAIBatchResource()}
    repository = batchor_definitions([answers], resources=resources).get_repository_def()

    assert {s.name for s in repository.sensor_defs} == {ADVANCE_SENSOR, MATERIALIZE_SENSOR}
    assert repository.has_job(ADVANCE_JOB)
    assert all(s.default_status.value == "RUNNING" for s in repository.sensor_defs)


def test_definitions_take_what_dagster_s_take() -> None:
    """A project with a schedule would have to give up the bundle, and forget a sensor."""
    answers = batch_asset(model=MODEL, name="answers")(_any_rows)
    job = dg.define_asset_job("nightly", [answers])

    @dg.asset_check(asset=answers)
    def is_good() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.sensor(job=job)
    def theirs() -> None: ...

    repository = batchor_definitions(
        [answers],
        resources={"batchor": BatchorResource(), "openai": OpenAIBatchResource()},
        jobs=[job],
        sensors=[theirs],
        schedules=[dg.ScheduleDefinition(job=job, cron_schedule="@daily")],
        asset_checks=[is_good],
        executor=dg.in_process_executor,
        metadata={"team": "llm"},
    ).get_repository_def()

    assert {s.name for s in repository.sensor_defs} == {
        ADVANCE_SENSOR,
        MATERIALIZE_SENSOR,
        "theirs",
    }
    assert repository.has_job("nightly")
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly_schedule"]
    assert dg.AssetCheckKey(answers.key, "is_good") in repository.asset_graph.asset_check_keys
    assert repository.get_job("nightly").executor_def is dg.in_process_executor


def test_missing_store_is_one_clear_error() -> None:
    """The user would read an error about a name they never wrote."""
    answers = batch_asset(model=MODEL, name="answers")(_any_rows)
    with pytest.raises(ValueError, match="resources lack 'batchor': give a BatchorResource"):
        batchor_definitions([answers], resources={"openai": OpenAIBatchResource()})


def test_missing_provider_is_one_clear_error() -> None:
    """A misspelt resource key would show in the first night's run."""
    answers = batch_asset(model=MODEL, name="answers", provider="gpt")(_any_rows)
    definitions = batchor_definitions([answers], resources={"batchor": BatchorResource()})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="resource with key 'gpt'"):
        dg.Definitions.validate_loadable(definitions)


def test_wrong_kind_of_resource_is_one_clear_error(world: World) -> None:
    """The user would read an AttributeError of ours."""
    answers = batch_asset(model=MODEL, name="answers")(_any_rows)
    world.resources["openai"] = Style(prefix="x")
    result = world.request(answers, partition=None)

    assert not result.success
    assert "resource 'openai' is Style: give an OpenAIBatchResource" in failure(result)


def _without_parameters() -> Any:
    return rows_of("d0")


def _with_context(context: dg.AssetExecutionContext) -> Any:
    return rows_of(context.asset_key.to_user_string())


def _with_bare_context(context) -> Any:
    return rows_of(context.run.run_id)


def _with_resource(style: Style) -> Any:
    return rows_of(style.prefix)


def _with_our_resource(batchor: BatchorResource) -> Any:
    return rows_of(str(batchor.state))


def _with_config(config: Size) -> Any:
    return rows_of("d0", config.count + 1)


def _with_everything(
    context: dg.AssetExecutionContext, first: pl.DataFrame, second: int, style: Style, config: Size
) -> Any:
    assert config.count == 2
    return first.select(pl.format("{} {} {}", "prompt", pl.lit(second), pl.lit(style.prefix)))


def _with_inputs(first: pl.DataFrame, second: int) -> Any:
    return first.with_columns(pl.format("{} {}", "prompt", pl.lit(second)).alias("prompt"))


FUNCTIONS = {
    function.__name__: function
    for function in (
        _without_parameters,
        _with_context,
        _with_bare_context,
        _with_resource,
        _with_our_resource,
        _with_config,
        _with_inputs,
    )
}


@dg.asset
def first() -> pl.DataFrame:
    """A frame."""
    return rows_of("d0")


@dg.asset(io_manager_key="in_memory")
def second() -> int:
    """Anything that is no frame."""
    return 7


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_may_ask_for_what_any_asset_may(world: World, name: str) -> None:
    """A data engineer would have to learn another way to write an asset."""
    answers = batch_asset(model=MODEL, name="answers")(FUNCTIONS[name])
    world.resources |= {"style": Style(prefix="kind"), "in_memory": dg.mem_io_manager}
    needed = [first, second] if name == "_with_inputs" else []
    result = world.request(*needed, answers, partition=None)

    assert result.success, failure(result)
    assert world.run.total_items == ROWS
    assert world.batches == ["in_progress"]


def _frame() -> Any:
    return rows_of("d0")


def _lazy_frame() -> Any:
    return rows_of("d0").lazy()


def _arrow_table() -> Any:
    return rows_of("d0").to_arrow()


def _items() -> Any:
    return [BatchItem(item_id=f"i{n}", payload=f"row {n}") for n in range(ROWS)]


def _yielded_items() -> Iterator[BatchItem]:
    for n in range(ROWS):
        yield BatchItem(item_id=f"i{n}", payload=f"row {n}", metadata={"n": n})


@pytest.mark.parametrize("function", [_frame, _lazy_frame, _arrow_table])
def test_frames_of_every_kind_are_rows(world: World, function: Any) -> None:
    """Users would convert what they have."""
    answers = batch_asset(model=MODEL, name="answers")(function)
    assert world.request(answers, partition=None).success
    world.finish(answers)
    assert world.table(partition=None)["item_id"].to_list() == ["0", "1", "2"]


@pytest.mark.parametrize("function", [_items, _yielded_items])
def test_batch_items_are_rows(world: World, function: Any) -> None:
    """What the core takes would not be taken by its Dagster layer."""

    def build(item: BatchItem) -> PromptParts:
        return PromptParts(prompt=f"Answer: {item.payload}")

    answers = batch_asset(model=MODEL, name="answers", build_prompt=build)(function)
    assert world.request(answers, partition=None).success
    world.finish(answers)
    table = world.table(partition=None)
    assert table["item_id"].to_list() == ["i0", "i1", "i2"]
    assert "Answer: row 1" in table["output_text"][1]


def test_what_are_no_rows_is_refused_in_words(world: World) -> None:
    """A forgotten ``return`` would read as an error of ours."""
    answers = batch_asset(model=MODEL, name="answers")(lambda: None)
    result = world.request(answers, partition=None)

    assert not result.success
    assert "the function of 'answers' returned nothing: return the rows" in failure(result)


def test_asset_with_a_prefix_given_later_is_the_same_asset(world: World) -> None:
    """``load_assets_from_modules(key_prefix=…)`` would give assets that never materialize."""
    bare = batch_asset(model=MODEL, name="answers")(_any_rows)
    answers = bare.with_attributes(
        asset_key_replacements={dg.AssetKey("answers"): dg.AssetKey(["mart", "answers"])}
    )
    assert world.request(answers, partition=None).success
    world.finish(answers)

    assert world.waiters[0].asset == "mart/answers"
    assert Path(world.folder / "out" / "mart" / "answers@.parquet").exists()


@pytest.mark.parametrize("io_type", ["lazy", "eager"])
def test_io_manager_is_given_the_kind_of_frame_that_was_declared(
    world: World, io_type: str
) -> None:
    """An IO manager that takes one kind of frame could not be used."""
    seen: list[object] = []

    class Recorder(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            seen.append(obj)

        def load_input(self, context: dg.InputContext) -> object:
            raise NotImplementedError

    world.resources["io_manager"] = Recorder()
    answers = batch_asset(model=MODEL, name="answers", io_type=io_type)(_any_rows)  # type: ignore[arg-type]  # parametrized
    world.request(answers, partition=None)
    world.finish(answers)

    (frame,) = seen
    assert isinstance(frame, pl.LazyFrame if io_type == "lazy" else pl.DataFrame)
    assert frame.lazy().collect().height == ROWS
