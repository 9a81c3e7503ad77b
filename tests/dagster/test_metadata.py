"""What Dagster's UI is given to show: metadata, column schemas, lineage, links."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

from batchor_core import ConfigurationError
from batchor_dagster import batch_asset, constants
from batchor_dagster.asset.console import console_url
from batchor_dagster.asset.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.asset.lineage import column_lineage
from batchor_dagster.asset.metadata import preview_metadata, table_schema
from tests.dagster.world import DAYS, MODEL, ROWS, Verdict, World, answers_asset, rows_of

KEY = dg.AssetKey("answers")
TICKETS = dg.AssetKey("tickets")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "dagster-ui.md"


class Part(BaseModel):
    """A nested model."""

    name: str = Field(description="As the price list has it.")


class Review(BaseModel):
    """A model with something to say of its fields."""

    mood: str = Field(description="How they feel.")
    parts: list[Part] = Field(description="What it is about.")
    count: int


@dg.asset(partitions_def=DAYS)
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Upstream of the batch assets here."""
    return pl.DataFrame(
        {
            "ticket_id": [f"t{n}" for n in range(ROWS)],
            "text": [f"row {n};" for n in range(ROWS)],
            "amount": [n / 2 for n in range(ROWS)],
        }
    )


def reviews_asset(**options: Any) -> dg.AssetsDefinition:
    """A batch asset ``answers`` over the tickets."""

    @batch_asset(
        **{
            "model": MODEL,
            "output": Review,
            "prompt_template": "Judge: {text}",
            "id_column": "ticket_id",
            "keep": {"amount": pl.Float64},
            "partitions_def": DAYS,
            **options,
        }
    )
    def answers(tickets: pl.DataFrame) -> pl.DataFrame:
        return tickets.with_columns(pl.lit(1).alias("added"))

    return answers


def declaration_of(asset: dg.AssetsDefinition) -> BatchAssetDeclaration:
    """The declaration of an asset ``answers``."""
    return declarations_of([asset])["answers"]


def materialized(world: World, *assets: Any) -> dict[str, Any]:
    """Metadata values of the partition that the assets end with."""
    world.request(*assets)
    world.finish(*assets)
    (record,) = world.instance.fetch_materializations(KEY, limit=1).records
    assert record.asset_materialization is not None
    return {key: entry.value for key, entry in record.asset_materialization.metadata.items()}


def test_everything_that_can_be_plotted_is_a_number(world: World) -> None:
    """The UI plots numbers alone: cost over time would be a list of texts."""
    shown = materialized(world, answers_asset())

    assert shown["dagster/partition_row_count"] == ROWS
    assert shown["batchor/rows_ok"] == ROWS
    assert shown["batchor/failure_rate"] == 0
    assert isinstance(shown["batchor/cost_usd"], float)
    assert shown["batchor/cost_usd"] > 0
    assert shown["batchor/saving_usd"] == pytest.approx(shown["batchor/cost_usd"])
    assert shown["dagster/uri"].endswith("/answers/d0.parquet")


def test_usage_has_the_names_that_are_plotted_already(world: World) -> None:
    """A dashboard of OpenAI usage would not see what batches use."""
    shown = materialized(world, answers_asset())
    usage = {key: value for key, value in shown.items() if key.startswith(f"openai.{MODEL}.")}

    tokens = [shown["batchor/input_tokens"], shown["batchor/output_tokens"]]
    assert usage == {
        f"openai.{MODEL}.calls": ROWS,
        f"openai.{MODEL}.total_tokens": sum(tokens),
        f"openai.{MODEL}.prompt_tokens": tokens[0],
        f"openai.{MODEL}.completion_tokens": tokens[1],
    }
    assert all(value > 0 for value in usage.values())


def test_preview_is_a_table_that_stays_small() -> None:
    """Whoever wants a look at the answers would open a file, or wait for a page of text."""
    frame = pl.DataFrame(
        {
            "item_id": [str(n) for n in range(100)],
            "long": ["ä" * 1000] * 100,
            "parts": [[{"name": "lid", "at": None}]] * 100,
            "nothing": [None] * 100,
            "score": list(range(100)),
            "batch_status": ["ok"] * 100,
        }
    )
    table = preview_metadata(frame.lazy())[constants.META_PREVIEW]

    assert isinstance(table, dg.TableMetadataValue)
    assert len(table.records) == 5
    assert table.records[1].data == {
        "item_id": "1",
        "long": "ä" * 39 + "…",
        "parts": '[{"name": "lid", "at": null}]',
        "nothing": None,
        "score": 1,
    }
    assert [column.name for column in table.schema.columns] == list(table.records[0].data)


def test_columns_are_described_down_to_the_nested_ones(world: World) -> None:
    """What a column means would have to be looked up in the code."""
    columns = {
        c.name: c
        for c in materialized(world, reviews_asset(), tickets)["dagster/column_schema"].columns
    }

    assert columns["mood"].description == "How they feel."
    assert columns["parts"].description == (
        "What it is about.\n\n- `name`: As the price list has it."
    )
    assert columns["count"].description is None
    assert columns["count"].type == "int64"
    assert not columns["item_id"].constraints.nullable


def test_nested_field_is_described_where_its_column_is_not() -> None:
    """A description would be lost for want of one above it."""
    inner = pa.field("name", pa.string(), metadata={b"description": b"The name."})
    schema = pa.schema([("by_day", pa.map_(pa.string(), pa.struct([inner])))])
    (column,) = table_schema(schema).columns
    assert column.description == "- `name`: The name."


def test_schema_and_model_are_known_before_the_first_run() -> None:
    """Whoever writes the downstream asset would have to pay for a run to see the columns."""
    (spec,) = reviews_asset(metadata={"team": "support"}).specs
    schema = spec.metadata["dagster/column_schema"]

    assert [column.name for column in schema.columns][:5] == [
        "item_id",
        "amount",
        "mood",
        "parts",
        "count",
    ]
    assert spec.metadata[constants.META_MODEL] == MODEL
    assert spec.metadata["team"] == "support"


def test_user_s_own_schema_stays() -> None:
    """What a user says of their columns would be overwritten by what we guess."""
    own = dg.TableSchema(columns=[dg.TableColumn("own")])
    (spec,) = reviews_asset(metadata={"dagster/column_schema": own}).specs
    assert spec.metadata["dagster/column_schema"] == own


def test_schema_is_not_guessed() -> None:
    """The page would show vectors of a length that they do not have."""
    vectors = batch_asset(model="text-embedding-3-small", endpoint="embeddings", name="answers")
    (spec,) = vectors(lambda: rows_of("d0")).specs
    assert "dagster/column_schema" not in spec.metadata

    sized = batch_asset(
        model="text-embedding-3-small", endpoint="embeddings", dimensions=8, name="answers"
    )
    (spec,) = sized(lambda: rows_of("d0")).specs
    types = {c.name: c.type for c in spec.metadata["dagster/column_schema"].columns}
    assert "[8]" in types["embedding"]


def test_lineage_leads_back_to_the_upstream_columns(world: World) -> None:
    """Nobody could tell which columns a model has seen, or where a kept one comes from."""
    shown = materialized(world, reviews_asset(keep={"amount": float, "added": int}), tickets)
    lineage = shown["dagster/column_lineage"].deps_by_column

    assert {
        name: [(d.asset_key, d.column_name) for d in deps] for name, deps in lineage.items()
    } == {
        "amount": [(TICKETS, "amount")],
        "mood": [(TICKETS, "text")],
        "parts": [(TICKETS, "text")],
        "count": [(TICKETS, "text")],
        "item_id": [(TICKETS, "ticket_id")],
    }


def test_lineage_that_is_not_plain_is_not_guessed(world: World) -> None:
    """A false lineage is worse than none: people delete columns because of it."""

    @dg.asset(partitions_def=DAYS)
    def customers() -> pl.DataFrame:
        return pl.DataFrame({"text": ["x"]})

    @batch_asset(model=MODEL, partitions_def=DAYS, prompt_template="{text}", keep={"amount": float})
    def answers(tickets: pl.DataFrame, customers: pl.DataFrame) -> pl.DataFrame:
        return tickets

    assert "dagster/column_lineage" not in materialized(world, answers, tickets, customers)


def test_lineage_can_be_said(world: World) -> None:
    """A function that renames columns would have a false lineage, and no way to mend it."""
    said = {"amount": [dg.TableColumnDep(dg.AssetKey("invoices"), "total")]}
    shown = materialized(world, reviews_asset(column_lineage=said), tickets)
    assert shown["dagster/column_lineage"].deps_by_column == said

    declaration = declaration_of(reviews_asset(column_lineage={}))
    assert column_lineage(declaration, {TICKETS: ["amount"]}) is None


def test_lineage_of_unknown_columns_is_refused() -> None:
    """A misspelt column would be shown as one of the table."""
    said = {"amuont": [dg.TableColumnDep(TICKETS, "amount")]}
    with pytest.raises(ConfigurationError, match="'amuont'"):
        reviews_asset(column_lineage=said)


@pytest.mark.parametrize(
    "upstream",
    [
        pl.DataFrame({"text": ["row;"], "amount": [1.0]}),
        pl.LazyFrame({"text": ["row;"], "amount": [1.0]}),
        pa.table({"text": ["row;"], "amount": [1.0]}),
        {"a": pl.DataFrame({"text": ["row;"], "amount": [1.0]})},
    ],
    ids=["frame", "lazy frame", "Arrow table", "partitions"],
)
def test_lineage_is_found_through_every_kind_of_frame(world: World, upstream: Any) -> None:
    """It would come and go with the annotation of an input."""

    @dg.asset(io_manager_key="in_memory")
    def source() -> Any:
        return upstream

    @batch_asset(model=MODEL, keep={"amount": float})
    def answers(source: Any) -> pl.DataFrame:
        return rows_of("d0").with_columns(pl.lit(1.0).alias("amount"))

    world.resources["in_memory"] = dg.mem_io_manager
    world.request(source, answers, partition=None)
    world.drive(source, answers)
    world.request(source, answers, partition=None)

    (record,) = world.instance.fetch_materializations(KEY, limit=1).records
    assert record.asset_materialization is not None
    lineage = record.asset_materialization.metadata["dagster/column_lineage"].value
    assert lineage == dg.TableColumnLineage(
        {"amount": [dg.TableColumnDep(dg.AssetKey("source"), "amount")]}
    )


VERTEX_JOB = "projects/12/locations/europe-west4/batchPredictionJobs/345"
VERTEX_CONSOLE = "https://console.cloud.google.com/ai/platform"
CONSOLES = {
    "OpenAI": (
        ("openai:api.openai.com:0f", "batch_1", None),
        "https://platform.openai.com/batches/batch_1",
    ),
    "Anthropic": (
        ("anthropic:api.anthropic.com:0f", "msgbatch_1", None),
        "https://platform.claude.com/workspaces/default/batches",
    ),
    "Anthropic's workspace": (
        ("anthropic:api.anthropic.com:0f", "msgbatch_1", "wrkspc_01"),
        "https://platform.claude.com/workspaces/wrkspc_01/batches",
    ),
    "Vertex AI": (
        ("gemini:europe-west4-aiplatform.googleapis.com:p:europe-west4", VERTEX_JOB, None),
        f"{VERTEX_CONSOLE}/locations/europe-west4/batch-predictions/345?project=12",
    ),
    "Vertex AI, another name": (("gemini:aiplatform.googleapis.com:p:l", "jobs/1", None), None),
    "Gemini": (("gemini:generativelanguage.googleapis.com:0f", "batches/1", None), None),
    "Azure": (("openai:ours.openai.azure.com:0f", "batch_1", None), None),
    "a proxy": (("openai:127.0.0.1:8000:0f", "batch_1", None), None),
    "a look-alike": (("openai:api.openai.com.example.net:0f", "batch_1", None), None),
    "an odd id": (
        ("openai:api.openai.com:0f", "a/../b?c", None),
        "https://platform.openai.com/batches/a%2F..%2Fb%3Fc",
    ),
}


@pytest.mark.parametrize("case", CONSOLES)
def test_console_is_linked_where_its_address_is_known(case: str) -> None:
    """A link would lead to a page that does not exist, or to somebody else's host."""
    asked, expected = CONSOLES[case]
    assert console_url(*asked) == expected


def test_no_link_leads_away_from_another_host(world: World) -> None:
    """A batch of a compatible host would be looked for, in vain, in OpenAI's console."""
    shown = materialized(world, answers_asset())
    assert shown["batchor/provider_batches"]
    assert not [key for key in shown if key.startswith("batchor/console")]


def test_progress_tells_what_is_where(world: World) -> None:
    """A user who waits would not know for what."""
    world.request(answers_asset(output=Verdict))
    (observation,) = world.observations()

    assert observation["batchor/progress_status"] == "running"
    assert observation["batchor/progress_rows_in_flight"] == ROWS
    assert observation["batchor/progress_cost_usd"] == 0
    assert len(observation["batchor/progress_provider_batches"]) == 1


def test_page_s_examples_are_assets() -> None:
    """Whoever copies an example would get an error, or other checks than the page promises."""
    names: dict[str, Any] = {}
    made = []
    for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL):
        exec(compile(block, str(DOCS), "exec"), names)
        made.append(names["insights"])
    checked, lineage = made

    assert {spec.name: spec.blocking for spec in checked.check_specs} == {
        "failure_rate": True,
        "cost_within_budget": False,
    }
    (declaration,) = declarations_of([lineage]).values()
    assert set(declaration.column_lineage or {}) == {"amount"}


def test_keys_fit_their_column() -> None:
    """Dagster's UI would draw a key across its value."""
    keys = [value for name, value in vars(constants).items() if name.startswith("META_")]
    assert [key for key in keys if len(key) > 34] == []


def test_page_lists_every_key() -> None:
    """A key that nobody explains is a riddle in the UI, and one that is gone is a lie."""
    listed = set(re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    usage = {
        f"<provider>.<model>.{value}"
        for name, value in vars(constants).items()
        if name.startswith("USAGE_")
    }
    keys = {value for name, value in vars(constants).items() if name.startswith("META_")}
    checks = {name.value for name in constants.CheckName}
    assert listed == keys | usage | checks
