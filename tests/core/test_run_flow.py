"""Whole runs: what goes in comes out, typed, in order, and counted."""

import gc
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel

from batchor_core import BatchItem, BatchRunner, Run
from batchor_core.errors import RunNotFinishedError
from batchor_core.model.policies import ArtifactPolicy, ChunkPolicy
from batchor_core.planning.arrow_mapper import to_arrow
from batchor_core.providers.openai.adapter import OpenAIProvider
from tests.core import output_models as models
from tests.core.world import MODEL, Verdict, World, Worlds, check_conserved, check_paid_once

KEEP = {
    "text": pl.String,
    "number": pl.Int32,
    "real": pl.Float64,
    "flag": pl.Boolean,
    "day": pl.Date,
    "at": pl.Datetime("us", "UTC"),
    "price": pl.Decimal(10, 2),
    "tags": pl.List(pl.String),
    "place": pl.Struct({"x": pl.Int64, "name": pl.String}),
    "kind": pl.Categorical,
    "raw": pl.Binary,
}


def frame(rows: int) -> pl.DataFrame:
    """Rows with a column of every kind that can be kept; every third value is null."""
    values: dict[str, Any] = {
        "text": "t",
        "number": 1,
        "real": 1.5,
        "flag": True,
        "day": date(2025, 1, 2),
        "at": datetime(2025, 1, 2, tzinfo=UTC),
        "price": Decimal("1.25"),
        "tags": ["a", None],
        "place": {"x": 1, "name": "n"},
        "kind": "k",
        "raw": b"\x00\xff",
    }
    columns: dict[str, Any] = {
        name: pl.Series(name, [None if n % 3 == 2 else values[name] for n in range(rows)], dtype)
        for name, dtype in KEEP.items()
    }
    return pl.DataFrame(
        {
            "id": pl.Series([f"item-{n}" for n in range(rows)], dtype=pl.String),
            "prompt": pl.Series([f"Prompt number {n};" for n in range(rows)], dtype=pl.String),
            **columns,
        }
    )


def table(run: Run) -> pa.Table:
    """The result table as it is stored, through the public frame."""
    return run.results_frame().collect().to_arrow()


def check_schema(run: Run) -> None:
    """The frame and the parts have the declared columns with the declared types."""
    declared = run.plan.result_schema
    expected = pl.DataFrame(pl.from_arrow(declared.empty_table())).schema
    assert run.results_frame().collect_schema() == expected
    for part in run.result_parts():
        assert part.schema == declared


class TestText:
    def test_answers_come_back_in_input_order(self, worlds: Worlds) -> None:
        """Rows would be mixed up where the provider shuffles its output."""
        world = worlds(shuffle_output=True)
        run = world.run(50, chunk_policy=ChunkPolicy(max_requests=7))
        assert run.status == "succeeded"
        for n, result in enumerate(run.results()):
            assert result.output_text is not None
            assert result.output_text.endswith(f"Prompt number {n};")
        assert world.batches() == 8
        check_conserved(run, 50)
        check_paid_once(world)

    def test_metadata_is_handed_back(self, world: World) -> None:
        """What a user attached to an item would be lost or land on another one."""
        given = [
            BatchItem(item_id=f"item-{n}", payload="x", metadata={"n": n, "deep": {"a": [None]}})
            for n in range(5)
        ]
        run = world.run([*given, BatchItem(item_id="item-5", payload="x")])
        expected = [item.metadata for item in given]
        assert [r.metadata for r in run.results()] == [*expected, {}]

    def test_usage_and_cost_are_what_the_provider_billed(self, world: World) -> None:
        """The costs shown would not be those on the bill."""
        run = world.run(20, chunk_policy=ChunkPolicy(max_requests=6))
        summary, billed = run.summary(), world.sim.ledger().summary()["billed"]
        assert summary.usage.input_tokens == billed["input_tokens"]
        assert summary.usage.output_tokens == billed["output_tokens"]
        price = run.plan.price
        assert price is not None
        cost = price.cost(billed["input_tokens"], 0, billed["output_tokens"])
        assert summary.cost_usd == pytest.approx(cost)
        assert summary.saved_usd == pytest.approx(cost)  # batch mode costs half
        rows = run.results_frame().collect()
        assert rows["batch_cost_usd"].sum() == pytest.approx(cost)
        assert rows["batch_input_tokens"].sum() == billed["input_tokens"]

    def test_an_unknown_model_has_an_unknown_cost(self, world: World) -> None:
        """A model without a price would seem to be free."""
        run = world.run(3, config={"model": "no-such-model"})
        assert run.summary().cost_usd is None
        assert run.summary().saved_usd is None
        assert run.results_frame().collect()["batch_cost_usd"].null_count() == 3
        check_schema(run)

    def test_result_rows_say_where_they_come_from(self, world: World) -> None:
        """A row could not be traced to its request at the provider."""
        run = world.run(4, chunk_policy=ChunkPolicy(max_requests=2))
        rows = run.results_frame().collect()
        assert rows["batch_provider_batch_id"].unique().sort().to_list() == sorted(
            run.provider_batch_ids()
        )
        assert rows["batch_request_id"].n_unique() == 4
        assert set(rows["batch_model"]) == {MODEL}
        assert set(rows["batch_finish_reason"]) == {"stop"}

    def test_the_journal_tells_the_story(self, world: World) -> None:
        """Nobody could see afterwards what happened, in which order."""
        world.run(3)
        assert [kind for kind, _ in groupby(world.kinds())] == [
            "run.created",
            "chunk.sealed",
            "run.ingested",
            "submission.intended",
            "submission.create_allowed",
            "submission.activated",
            "submission.polled",
            "submission.ended",
            "submission.collected",
            "chunk.results_written",
            "run.closed",
        ]

    def test_results_before_the_end_are_refused(self, world: World) -> None:
        """Half of the results would be taken for all of them."""
        run = world.open()
        run.advance()
        for read in (run.results, run.results_frame, lambda: list(run.result_parts())):
            with pytest.raises(RunNotFinishedError, match="run-1"):
                read()

    def test_dropping_raw_results_changes_nothing_else(self, world: World) -> None:
        """Whoever saves the space would lose answers."""
        run = world.run(5, artifact_policy=ArtifactPolicy(raw_results="drop"))
        check_conserved(run, 5)
        assert not (world.artifacts / "runs" / "run-1" / "raw").exists()

    def test_a_fresh_process_reads_the_results(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Results would be bound to the process that made them."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        before = world.run(5, structured_output=Verdict).results()
        assert world.new_runner().get_run("run-1").results() == before


class TestStructured:
    def test_nested_answers_are_typed(self, world: World) -> None:
        """Lists, choices, optionals, exact numbers and instants would lose their types."""
        run = world.run(30, structured_output=models.Ticket)
        assert run.status == "succeeded"
        results = run.results()
        assert all(isinstance(r.output, models.Ticket) for r in results)
        rows = run.results_frame().collect()
        assert rows.schema["lines"] == pl.List(
            pl.Struct(
                {
                    "price": pl.Decimal(38, 2),
                    "when": pl.Datetime("us", "UTC"),
                    "tags": pl.List(pl.String),
                }
            )
        )
        for result, row in zip(results, rows.iter_rows(named=True), strict=True):
            assert row["mood"] == result.output.mood.value
            assert [line["price"] for line in row["lines"]] == [
                line.price for line in result.output.lines
            ]
        check_schema(run)

    @pytest.mark.parametrize(
        "model",
        [models.Aliased, models.Scores, models.Owner, models.Node, models.Reasoned, models.Strict],
    )
    def test_results_revive_models_of_every_shape(
        self, world: World, model: type[BaseModel]
    ) -> None:
        """Aliases, mappings, unions or excluded fields would make ``results()`` fail."""
        run = world.run(3, structured_output=model)
        assert run.status == "succeeded"
        results = run.results()
        for result in results:
            assert isinstance(result.output, model)
            assert result.output_text is not None
            assert json.loads(result.output_text)
        # The table says the same as the objects.
        outputs = to_arrow([r.output for r in results], model)
        stored = pa.concat_tables(run.result_parts()).select(outputs.column_names)
        assert stored.equals(outputs)
        check_schema(run)

    @pytest.mark.parametrize("example", models.EXAMPLES, ids=lambda e: type(e).__name__)
    def test_stored_answers_survive_the_table(self, example: BaseModel) -> None:
        """The model's own JSON could not be read back into an equal instance."""
        text = example.model_dump_json(by_alias=True, exclude=None)
        if "firstName" in text:
            text = text.replace("second", "secondNumber")
        assert type(example).model_validate_json(text) == example

    def test_kept_columns_are_no_part_of_the_answer(self, world: World) -> None:
        """A kept column would reach the user's model, which may forbid extra fields."""
        run = world.run(
            frame(3), id_column="id", keep={"text": pl.String}, structured_output=models.Strict
        )
        assert all(isinstance(r.output, models.Strict) for r in run.results())


class TestSchemas:
    @pytest.mark.parametrize("structured", [None, Verdict])
    @pytest.mark.parametrize("fate", ["ok", "failed", "mixed", "empty"])
    def test_the_schema_depends_on_the_declaration_alone(
        self, world: World, structured: Any, fate: str
    ) -> None:
        """Downstream code would break on an empty partition or one where every row failed."""
        if fate in {"failed", "mixed"}:
            match = {"prompt": "number 1;"} if fate == "mixed" else {}
            world.sim.faults(kind="line_error", status=400, match=match)
        rows = frame(0 if fate == "empty" else 6)
        run = world.run(rows, id_column="id", keep=KEEP, structured_output=structured)
        check_schema(run)
        kept = run.results_frame().select(list(KEEP)).collect()
        expected = rows.select(list(KEEP)).with_columns(pl.col("kind").cast(pl.String))
        assert kept.equals(expected)
        assert run.status == (
            "completed_with_failures" if fate in {"failed", "mixed"} else "succeeded"
        )

    def test_an_empty_input_succeeds_and_sends_nothing(self, world: World) -> None:
        """An empty partition would crash, or cost something."""
        run = world.run([])
        assert run.status == "succeeded"
        assert run.results() == []
        assert run.summary().cost_usd == 0
        assert world.batches() == 0
        check_schema(run)
        assert world.run([]).run_id == run.run_id

    @pytest.mark.parametrize(
        "empty", [iter(()), pl.DataFrame({"prompt": []}, {"prompt": pl.String})]
    )
    def test_other_empty_inputs(self, world: World, empty: Any) -> None:
        """Some kinds of empty input would crash."""
        assert world.run(empty).status == "succeeded"

    def test_many_parts_are_scanned_as_one_frame(self, world: World) -> None:
        """A frame over several files would lose rows, or their order."""
        run = world.run(
            frame(25), id_column="id", keep=KEEP, chunk_policy=ChunkPolicy(max_requests=4)
        )
        rows = run.results_frame().collect()
        assert rows["item_id"].to_list() == [f"item-{n}" for n in range(25)]
        assert rows.height == sum(part.num_rows for part in run.result_parts()) == 25

    def test_exports_hold_every_row(self, world: World) -> None:
        """Files for people would lack rows or nested values."""
        run = world.run(
            9, structured_output=models.Ticket, chunk_policy=ChunkPolicy(max_requests=4)
        )
        for suffix in ("parquet", "jsonl", "csv"):
            path = world.folder / f"out.{suffix}"
            assert run.export_terminal_results(str(path)) == 9
            assert path.stat().st_size
        assert pl.read_parquet(world.folder / "out.parquet").height == 9
        lines = (world.folder / "out.jsonl").read_text().splitlines()
        assert [json.loads(line)["item_id"] for line in lines] == [f"item-{n}" for n in range(9)]

    def test_json_lines_are_json_whatever_the_numbers(self, world: World) -> None:
        """Other tools would refuse the file at the first NaN or infinity."""
        numbers = [float("nan"), float("inf"), -float("inf"), 1.5]
        rows = pl.DataFrame(
            {"prompt": list("abcd"), "x": numbers, "in": [{"list": [n]} for n in numbers]}
        )
        run = world.run(rows, keep=dict(rows.select("x", "in").schema))
        path = world.folder / "out.jsonl"
        run.export_terminal_results(str(path))
        lines = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
        assert [line["x"] for line in lines] == [None, None, None, 1.5]
        assert [line["in"] for line in lines] == [{"list": [n]} for n in (None, None, None, 1.5)]
        run.export_terminal_results(str(path.with_suffix(".csv")))
        cells = pl.read_csv(path.with_suffix(".csv"))
        assert list(map(float, cells["x"]))[1:] == numbers[1:]
        assert [msgspec.json.decode(cell) for cell in cells["in"]] == [line["in"] for line in lines]

    @pytest.mark.parametrize("name", ["art[1]", "*", "day=1", "a b?#"])
    def test_a_folder_of_any_name(self, world: World, name: str) -> None:
        """A bracket in the folder's name would be taken for a pattern, and no result be found."""
        world.artifacts = world.folder / name / "artifacts"
        run = world.run(9, chunk_policy=ChunkPolicy(max_requests=4))
        check_conserved(run, 9)
        assert run.results_frame().collect().height == 9


class TestProviderPromises:
    def test_remote_files_are_removed(self, world: World) -> None:
        """Prompts and answers would stay in the provider's account for good."""
        world.run(9, chunk_policy=ChunkPolicy(max_requests=3))
        assert world.sim.state.openai.list_files({})["data"] == []

    def test_remote_files_can_be_kept(self, world: World) -> None:
        """Whoever wants them at the provider would lose them."""
        world.run(3, artifact_policy=ArtifactPolicy(remote_files="keep"))
        assert len(world.sim.state.openai.list_files({})["data"]) == 2

    def test_runs_of_one_account_share_its_connections(self, world: World) -> None:
        """A process that looks at many runs would run out of sockets."""
        made: list[Any] = []

        def connect(config: Any) -> OpenAIProvider:
            made.append(config)
            return OpenAIProvider(config)

        runner = world.new_runner(connect=connect)
        for number in range(3):
            runner.open(world.job(2), run_id=f"run-{number}")
            runner.open(world.job(2), run_id="run-0")
        runner.open(world.job(2, config={"model": "gpt-4.1"}), run_id="run-9")
        assert len(made) == 2

    def test_polling_asks_as_often_as_agreed(self, world: World) -> None:
        """The provider would be asked for the status in a busy loop."""
        asked: list[float] = []

        class Counting(OpenAIProvider):
            def get(self, batch_id: str) -> Any:
                asked.append(world.clock.monotonic())
                return super().get(batch_id)

        runner = world.new_runner(connect=Counting)
        runner.run_and_wait(world.job(3), run_id="run-1")
        assert 3 <= len(asked) <= 6


@pytest.fixture(autouse=True)
def _no_stray_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    return iter((None,))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # that it was forgotten is the point
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_results_outlive_a_forgotten_runner(world: World) -> None:
    """The results of a short script would be gone with the last line that names its runner."""

    def answered() -> Run:
        runner = BatchRunner("memory", clock=world.clock)
        return runner.run_and_wait(world.job(3))

    run = answered()
    gc.collect()
    assert [result.status for result in run.results()] == ["ok"] * 3
    del run
    gc.collect()
