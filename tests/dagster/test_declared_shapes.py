"""Assets with odd names, with themselves upstream, and functions of every shape."""

import functools
from collections.abc import Callable
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core import ConfigurationError
from batchor_dagster import batch_asset
from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.step.rows import rows_of as taken
from tests.dagster.world import MODEL, ROWS, Verdict, World, failure, rows_of

TIMES = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-05")
YESTERDAY = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)


def _rows() -> pl.DataFrame:
    return rows_of("d0")


@pytest.mark.parametrize(
    "name",
    [{"key": "größe"}, {"name": "my asset"}, {"key": ["a b", "ç"]}, {"key": "class"}],
    ids=str,
)
def test_any_key_that_dagster_takes_is_the_key_of_a_batch_asset(
    world: World, name: dict[str, Any]
) -> None:
    """An asset would be refused for a name that nobody wrote, made from its own for a check."""
    answers = batch_asset(model=MODEL, output=Verdict, **name)(_rows)
    key = answers.key.to_user_string()
    assert list(declarations_of([answers])) == [key]
    assert {check.asset_key for check in answers.check_keys} == {answers.key}
    assert world.request(answers, partition=None).success
    (result,) = world.finish(answers)

    assert result.success, failure(result)
    assert [waiter.asset for waiter in world.waiters] == [key]
    assert world.materialized_of(answers.key) == [None]
    passed = [e.passed for e in result.get_asset_check_evaluations()]
    assert passed == [True] * len(list(answers.check_keys))


def test_odd_keys_that_look_alike_are_two_assets() -> None:
    """Two assets would share one op, so that a project with both could not be loaded."""
    both = [batch_asset(model=MODEL, key=key)(_rows) for key in ("a b", "a-b", "a ß", "a_ü")]
    assert len({asset.op.name for asset in both}) == len(both)


def _from_yesterday(
    context: dg.AssetExecutionContext, answers: pl.DataFrame | None = None
) -> pl.DataFrame:
    before = 0 if answers is None else answers.height
    return rows_of(context.partition_key, before + 1)


def _from_yesterday_by_day(
    context: dg.AssetExecutionContext, answers: dict[str, pl.DataFrame]
) -> pl.DataFrame:
    return _from_yesterday(context, next(iter(answers.values()), None))


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`:dagster.BetaWarning")
@pytest.mark.parametrize("policy", [None, dg.BackfillPolicy.multi_run(5)], ids=["none", "policy"])
@pytest.mark.parametrize("key", ["answers", "größe"])
def test_asset_may_read_its_own_day_before(
    world: World, policy: dg.BackfillPolicy | None, key: str
) -> None:
    """A running summary, or a chain of corrections, could not be a batch asset."""
    declare = batch_asset(
        model=MODEL,
        key=key,
        partitions_def=TIMES,
        ins={"answers": dg.AssetIn(key=key, partition_mapping=YESTERDAY)},
        backfill_policy=policy,
    )
    answers = declare(_from_yesterday_by_day if policy else _from_yesterday)
    for day, rows in {"2026-01-01": 1, "2026-01-02": 2}.items():
        result = world.request(answers, partition=day)
        assert result.success, failure(result)
        for run in world.finish(answers):
            assert run.success, failure(run)
        (stored,) = (world.folder / "out").rglob(f"{day}.parquet")
        assert pl.read_parquet(stored).height == rows


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`:dagster.BetaWarning")
@pytest.mark.parametrize("policy", [None, dg.BackfillPolicy.multi_run(5)], ids=["none", "policy"])
def test_dependency_may_be_an_input_and_a_dep(policy: dg.BackfillPolicy | None) -> None:
    """A mapping that is given as Dagster's docs show would be refused once there is a policy."""
    answers = batch_asset(
        model=MODEL,
        key="answers",
        partitions_def=TIMES,
        deps=[dg.AssetDep("answers", partition_mapping=YESTERDAY)],
        backfill_policy=policy,
    )(_from_yesterday)
    (dep,) = next(iter(answers.specs)).deps
    assert (dep.asset_key, dep.partition_mapping) == (answers.key, YESTERDAY)


def _dicts() -> Any:
    return [{"id": "a", "prompt": "first"}, {"id": "b", "prompt": "second", "kind": 2}]


def _yielded_dicts() -> Any:
    yield from _dicts()


def _of_pandas() -> Any:
    import pandas as pd

    return pd.DataFrame(_dicts())


def _of_pandas_with_an_index() -> Any:
    return _of_pandas().set_index("id")


@pytest.mark.parametrize("function", [_dicts, _yielded_dicts, _of_pandas, _of_pandas_with_an_index])
def test_what_people_write_first_are_rows(world: World, function: Any) -> None:
    """A beginner would have to learn a frame library before the first answer."""
    if "pandas" in function.__name__:
        pytest.importorskip("pandas")
    keep = {"kind": pl.Int64 if function in (_dicts, _yielded_dicts) else pl.Float64}
    answers = batch_asset(model=MODEL, name="answers", id_column="id", keep=keep)(function)
    result = world.request(answers, partition=None)
    assert result.success, failure(result)
    world.finish(answers)
    table = world.table(partition=None)
    assert table["item_id"].to_list() == ["a", "b"]
    assert table["kind"].to_list() == [None, 2]


def _pandas_of_two_kinds() -> Any:
    import pandas as pd

    return pd.DataFrame({"prompt": ["a secret", 1]})


def _result() -> dg.MaterializeResult[Any]:
    return dg.MaterializeResult()


NO_ROWS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "returned nothing: return the rows: a Polars or pandas frame"),
    "text": (lambda: "a secret", "returned a str: return the rows"),
    "dict": (lambda: {"prompt": ["a secret"]}, "returned a dict: return"),
    "series": (lambda: pl.Series("prompt", ["a secret"]), "returned a Series: return"),
    "result": (_result, "returned a MaterializeResult: return"),
    "texts": (lambda: ["a secret"], "returned a list of str: return"),
    "mixed": (lambda: [{"prompt": "a secret"}, 1], "returned a list of dicts and int: return"),
    "nothings": (lambda: [None], "returned a list of NoneType: return"),
    "empty dicts": (lambda: [{}, {}], "returned a list of empty dicts: return"),
    "number": (lambda: 7, "returned a int: return"),
    "two types": (
        lambda: [{"prompt": "a secret"}, {"prompt": 1}],
        "hold int and str under 'prompt': give the values of a key one type",
    ),
    "two types in pandas": (_pandas_of_two_kinds, "holds values of several types: give each"),
}


@pytest.mark.parametrize("case", NO_ROWS)
def test_what_are_no_rows_is_refused_in_one_line(world: World, case: str) -> None:
    """A beginner would read an error of a frame library, with rows of the input in it."""
    if "pandas" in case:
        pytest.importorskip("pandas")
    function, words = NO_ROWS[case]
    result = world.request(batch_asset(model=MODEL, key="answers")(function), partition=None)
    assert not result.success
    assert words in failure(result)
    assert "'answers' returned" in failure(result)
    assert "secret" not in failure(result)


def test_numbers_of_dicts_may_be_whole_and_broken() -> None:
    """A price of 2 beside one of 2.5 would be refused."""
    frame = taken([{"price": 2}, {"price": 2.5}, {}], "answers")
    assert isinstance(frame, pl.DataFrame)
    assert frame["price"].to_list() == [2.0, 2.5, None]


def _no_dicts() -> list[dict[str, Any]]:
    return []


def test_no_dicts_are_no_rows(world: World) -> None:
    """A day on which nothing happened would fail for the want of a column."""
    answers = batch_asset(
        model=MODEL, name="answers", prompt_template="{text}", id_column="id", keep={"n": pl.Int64}
    )(_no_dicts)
    result = world.request(answers, partition=None)
    assert result.success, failure(result)
    world.finish(answers)
    assert world.table(partition=None).height == 0


@dg.asset(name="openai")
def upstream_of_a_resource_s_name() -> pl.DataFrame:
    """Has the name of the account's resource key."""
    return rows_of("d0")


@dg.asset(name="batchor")
def upstream_of_the_store_s_name() -> pl.DataFrame:
    """Has the name of the store's resource key."""
    return rows_of("d1")


class Style(dg.ConfigurableResource[Any]):
    """A user's resource."""

    prefix: str


class Size(dg.Config):
    """A user's config, which knows nothing of ours."""

    count: int = 2


class _Callable:
    """An object that is called."""

    def __call__(self, _: dg.AssetExecutionContext, *, style: Style) -> pl.DataFrame:
        return rows_of(style.prefix)


async def _asynchronous(style: Style) -> pl.DataFrame:
    return rows_of(style.prefix)


async def _asynchronous_dicts() -> Any:
    for n in range(ROWS):
        yield {"prompt": f"row {n}"}


def _of_kwargs(**frames: pl.DataFrame) -> pl.DataFrame:
    assert set(frames) == {"openai", "batchor"}
    return frames["openai"]


def _of_inputs(openai: pl.DataFrame, batchor: pl.DataFrame, style: Style) -> pl.DataFrame:
    assert style.prefix == "kind"
    return openai.filter(pl.lit(batchor.height == ROWS))


def _of_context_(context_: Any) -> pl.DataFrame:
    return rows_of(context_.run.run_id)


def _of_typed_context(ctx: dg.AssetExecutionContext) -> pl.DataFrame:
    return rows_of(ctx.run.run_id)


def _of_two(style: Style, count: int) -> pl.DataFrame:
    return rows_of(style.prefix, count)


UPSTREAM = {name: dg.AssetIn(key=name) for name in ("openai", "batchor")}
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "callable object": (_Callable(), {}),
    "async": (_asynchronous, {}),
    "async generator": (_asynchronous_dicts, {}),
    "kwargs": (_of_kwargs, {"ins": UPSTREAM}),
    "inputs of resources' names": (_of_inputs, {}),
    "context_": (_of_context_, {}),
    "typed context": (_of_typed_context, {}),
    "partial": (functools.partial(_of_two, count=ROWS), {}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_function_may_have_any_shape(world: World, shape: str) -> None:
    """A data engineer would have to rewrite a function to make a batch asset of it."""
    function, options = SHAPES[shape]
    answers = batch_asset(**{"model": MODEL, "name": "answers", **options})(function)
    world.resources |= {"style": Style(prefix="kind")}
    upstream = [upstream_of_a_resource_s_name, upstream_of_the_store_s_name]
    needed = upstream if answers.keys_by_input_name else []
    result = world.request(*needed, answers, partition=None)

    assert result.success, failure(result)
    assert world.run.total_items == ROWS
    assert len(world.finish(*needed, answers)) == 1


def test_names_of_functions_of_every_shape() -> None:
    """A partial could not be an asset, and an object would be one without a word of why not."""
    assert batch_asset(model=MODEL)(functools.partial(_of_two, count=1)).key.path == ["_of_two"]
    with pytest.raises(ConfigurationError, match="a _Callable has no name that the asset could"):
        batch_asset(model=MODEL)(_Callable())


def _with_size(config: Size) -> pl.DataFrame:
    return rows_of("d0", config.count)


def test_config_of_ones_own_keeps_ours_beside_it(world: World) -> None:
    """``dry_run`` would be dropped in silence, and the rows be paid for."""
    answers = batch_asset(model=MODEL, name="answers")(_with_size)
    config: dict[str, Any] = {"count": 5, "dry_run": True}
    run_config = {"ops": {"answers": {"config": config}}}
    result = world.request(answers, partition=None, run_config=run_config)
    assert result.success, failure(result)
    assert world.batches == []

    config["dry_run"] = False
    assert world.request(answers, partition=None, run_config=run_config).success
    assert world.run.total_items == 5
    typed = dg.RunConfig(ops={"answers": Size(count=4)})
    assert world.request(answers, partition=None, run_config=typed).success
    assert world.runs[-1].total_items == 4


class Clashing(dg.Config):
    """Means something else by one of our fields."""

    wait: str = "long"


def _with_clash(config: Clashing) -> pl.DataFrame:
    return rows_of(config.wait)


def _with_text(config: str) -> pl.DataFrame:
    return rows_of(config)


def _untyped(config) -> pl.DataFrame:  # type: ignore[no-untyped-def]  # the case
    return rows_of(config)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_with_clash, "Clashing, the config of '_with_clash', has a field 'wait'"),
        (_with_text, "has to be annotated with a subclass of dagster.Config"),
        (_untyped, "has to be annotated with a subclass of dagster.Config"),
    ],
)
def test_config_that_cannot_have_ours_beside_it_is_refused(function: Any, words: str) -> None:
    """A field would mean two things, or ours would be dropped in silence."""
    with pytest.raises(ConfigurationError, match=words):
        batch_asset(model=MODEL)(function)
