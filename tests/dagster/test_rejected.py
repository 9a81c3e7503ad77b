"""The rows of partitions that were refused, and the failed rows of those that were not."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import polars as pl
import pytest

from batchor_dagster import BatchParquetIOManager, batch_asset
from batchor_dagster.constants import META_REJECTED_URI
from tests.dagster.test_ranges import SINGLE_RUN, ask
from tests.dagster.world import MODEL, ROWS, World, answers_asset, failure, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")

REFUSED = {"kind": "line_error", "status": 400, "message": "Simulated refusal."}


def refuse(world: World, prompt: str) -> None:
    """Have the provider refuse a row."""
    world.sim.faults(match={"prompt": prompt}, **REFUSED)


def failed_metadata(result: Any) -> dict[str, Any]:
    """Metadata of a run's failure."""
    (event,) = [e for e in result.all_events if e.is_step_failure]
    return {k: v.value for k, v in event.step_failure_data.user_failure_data.metadata.items()}


def file_of(uri: str) -> Path:
    """The file that a URI names."""
    return Path(unquote(urlsplit(uri).path))


def stored_files(world: World, asset: str) -> list[Path]:
    """What a glob over an asset's folder finds."""
    return sorted((world.folder / "out" / asset).glob("**/*"))


def test_the_failure_names_the_rejected_rows(world: World) -> None:
    """Rows that were paid for could not be read, because some others of the partition failed."""
    answers = answers_asset(max_failure_rate=0)
    refuse(world, "row 1;")
    world.request(answers)
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    result = world.launch(request, answers)

    uri = failed_metadata(result)[META_REJECTED_URI]
    assert failure(result).startswith("1 of 3 rows failed")
    assert f"the answers are in {uri}" in failure(result)
    table = pl.read_parquet(file_of(uri))
    assert table["batch_status"].to_list() == ["ok", "failed", "ok"]
    assert stored_files(world, "answers") == []
    assert world.materialized() == []
    assert world.materialize_tick(answers) == []
    (waiter,) = world.waiters
    assert uri in (waiter.reason or "")


def test_what_is_materialized_later_replaces_the_rejected_rows(world: World) -> None:
    """Old answers would be shown as rejected beside the good ones."""
    answers = answers_asset(max_failure_rate=0)
    refuse(world, "row 1;")
    world.request(answers)
    (failed,) = [r for r in world.finish(answers) if not r.success]
    path = file_of(failed_metadata(failed)[META_REJECTED_URI])
    assert path.exists()
    world.sim.clear_faults()
    world.request(answers)
    world.finish(answers)

    assert world.materialized() == ["d0"]
    assert world.table()["batch_status"].to_list() == ["ok"] * ROWS
    assert not path.exists()


def test_a_rejected_partition_leaves_the_stored_one(world: World) -> None:
    """Yesterday's good answers would be lost to today's bad ones."""
    answers = answers_asset(max_failure_rate=0)
    world.request(answers)
    world.finish(answers)
    changed = answers_asset(max_failure_rate=0, system_prompt="In another way.")
    refuse(world, "row 1;")
    world.request(changed)
    world.finish(changed)

    assert world.table()["batch_status"].to_list() == ["ok"] * ROWS
    failed = world.resources["io_manager"].scan_failed("answers").collect()
    assert failed.select("item_id", "batch_partition", "batch_partition_state").rows() == [
        ("1", "d0", "rejected")
    ]


def test_each_rejected_partition_of_a_range_has_its_file(world: World) -> None:
    """Of a backfill only one bad partition could be looked at, or the good ones with it."""
    answers = answers_asset(max_failure_rate=0.5, backfill_policy=SINGLE_RUN)
    for day in ("d1", "d2"):
        for row in (0, 1):
            refuse(world, f"{day} row {row};")
    refuse(world, "d3 row 2;")
    ask(world, answers, "d0", "d3")
    (failed,) = [r for r in world.finish(answers) if not r.success]

    uris = failed_metadata(failed)[META_REJECTED_URI]
    assert list(uris) == ["d1", "d2"]
    assert all(pl.read_parquet(file_of(uri)).height == ROWS for uri in uris.values())
    assert f"the answers are in {uris['d1']} and 1 more" in failure(failed)
    assert sorted(map(str, world.materialized())) == ["d0", "d3"]

    manager = world.resources["io_manager"]
    columns = ["batch_partition", "batch_partition_state", "item_id", "batch_error_code"]
    rows = manager.scan_failed("answers").select(columns).sort(columns).collect().rows()
    assert rows == [
        ("d1", "rejected", "0", "invalid_request_error"),
        ("d1", "rejected", "1", "invalid_request_error"),
        ("d2", "rejected", "0", "invalid_request_error"),
        ("d2", "rejected", "1", "invalid_request_error"),
        ("d3", "stored", "2", "invalid_request_error"),
    ]
    some = manager.scan_failed(["answers"], partition_keys=["d0", "d2"]).collect()
    assert some["batch_partition"].to_list() == ["d2", "d2"]
    with pytest.raises(FileNotFoundError, match=r"'answers' has no stored and no rejected table"):
        manager.scan_failed("answers", ["d9"])


def test_an_asset_without_partitions(world: World) -> None:
    """Its rejected rows would be taken for a partition, or not be found."""

    @batch_asset(model=MODEL, max_failure_rate=0, key=["mart", "answers"])
    def answers() -> pl.DataFrame:
        return rows_of("it")

    refuse(world, "row 1;")
    world.request(answers, partition=None)
    (failed,) = [r for r in world.finish(answers) if not r.success]

    assert file_of(failed_metadata(failed)[META_REJECTED_URI]).exists()
    assert stored_files(world, "mart") == []
    manager = world.resources["io_manager"]
    table = manager.scan_failed(dg.AssetKey(["mart", "answers"])).collect()
    assert table.select("item_id", "batch_partition", "batch_partition_state").rows() == [
        ("1", None, "rejected")
    ]


class Elsewhere(dg.IOManager):
    """Somebody else's IO manager."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None: ...

    def load_input(self, context: dg.InputContext) -> None: ...


def test_another_io_manager_is_left_alone(world: World) -> None:
    """A batch asset over other tables would fail for another reason than its rows."""
    world.resources["tables"] = Elsewhere()
    answers = answers_asset(max_failure_rate=0, io_manager_key="tables")
    refuse(world, "row 1;")
    world.request(answers)
    (failed,) = [r for r in world.finish(answers) if not r.success]

    assert META_REJECTED_URI not in failed_metadata(failed)
    assert f"batchor results --run-id {world.run.run_id} exports the answers" in failure(failed)


def test_the_managers_own_key_is_looked_at(world: World) -> None:
    """Rejected rows would land where the asset is not."""
    other = BatchParquetIOManager(base_path=str(world.folder / "other"))
    world.resources["tables"] = other
    answers = answers_asset(max_failure_rate=0, io_manager_key="tables")
    refuse(world, "row 1;")
    world.request(answers)
    world.finish(answers)

    assert other.scan_failed("answers").collect().height == 1


def test_a_verdict_does_not_depend_on_the_rejected_file(world: World) -> None:
    """A full disk would make a verdict be tried again and again."""
    answers = answers_asset(max_failure_rate=0)
    refuse(world, "row 1;")
    (world.folder / "out").mkdir()
    (world.folder / "out" / ".rejected").write_text("in the way")
    world.request(answers)
    (failed,) = [r for r in world.finish(answers) if not r.success]

    assert failure(failed).startswith("1 of 3 rows failed")
    assert "batchor results --run-id" in failure(failed)
    assert world.materialize_tick(answers) == []


def test_the_pages_asset_of_failed_rows_runs(world: World) -> None:
    """A reader would copy what does not work."""
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    section = page.partition("## Failed rows over partitions")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    answers = answers_asset(max_failure_rate=0.5)
    refuse(world, "row 1;")
    world.request(answers)
    world.finish(answers)
    result = world.request(answers, names["failed_rows"], partition=None, selection=["failed_rows"])

    assert result.success, failure(result)
    table = world.table("failed_rows", partition=None)
    assert table.select("item_id", "batch_partition", "batch_partition_state").rows() == [
        ("1", "d0", "stored")
    ]
