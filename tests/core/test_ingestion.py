"""Reading the input: validated, resumable, and never sent before its end."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from batchor_core import BatchItem, CsvItemSource, JsonlItemSource, ParquetItemSource, Run
from batchor_core.errors import (
    ConfigurationError,
    DuplicateItemIdError,
    FingerprintMismatchError,
    MissingColumnError,
    RunIngestionSourceRequiredError,
    SourceError,
)
from batchor_core.executor.due import HEAVY_STEPS
from batchor_core.model.items import PromptParts
from batchor_core.model.policies import ChunkPolicy
from tests.core.world import World, check_conserved, items

THREES = ChunkPolicy(max_requests=3)
ROWS = 10


def write(kind: str, folder: Path, rows: int = ROWS, word: str = "Prompt") -> Any:
    """The same rows as a source of any kind, read anew each time."""
    frame = pl.DataFrame(
        {
            "id": [f"item-{n}" for n in range(rows)],
            "prompt": [f"{word} number {n};" for n in range(rows)],
        }
    )
    path = folder / f"input.{kind}"
    if kind == "csv":
        frame.write_csv(path)
        return CsvItemSource(path, id_column="id", block_rows=4)
    if kind == "jsonl":
        frame.write_ndjson(path)
        return JsonlItemSource(path, id_column="id", block_rows=4)
    if kind == "parquet":
        frame.write_parquet(path)
        return ParquetItemSource(path, id_column="id", block_rows=4)
    if kind == "frame":
        return frame.with_columns(pl.col("prompt"))
    if kind == "lazy":
        return frame.lazy()
    made = [BatchItem(item_id=i, payload=p) for i, p in frame.rows()]
    return made if kind == "list" else iter(made)


KINDS = ["csv", "jsonl", "parquet", "frame", "lazy", "list", "iterator"]


class TestRefusals:
    @pytest.mark.parametrize("far", [1, 8])
    def test_an_id_that_comes_twice(self, world: World, far: int) -> None:
        """Two rows of one id would overwrite each other, or be told apart by nobody."""
        rows = [*items(9), BatchItem(item_id=f"item-{9 - far}", payload="again")]
        with pytest.raises(DuplicateItemIdError, match=f"'item-{9 - far}'"):
            world.run(rows, chunk_policy=THREES)
        assert world.batches() == 0

    def test_a_null_prompt_names_its_row(self, world: World) -> None:
        """Nobody would find the bad row among a million."""
        rows = pl.DataFrame({"prompt": ["a", "b", "c", "d", None]})
        with pytest.raises(SourceError, match="row 4"):
            world.run(rows, chunk_policy=THREES)
        assert world.batches() == 0

    @pytest.mark.parametrize("prompt", [None, 7, {"prompt": None}, PromptParts(prompt=None)])  # type: ignore[arg-type]
    def test_a_payload_that_is_no_prompt_names_its_item(self, world: World, prompt: Any) -> None:
        """Nobody would find the bad item."""
        with pytest.raises(SourceError, match="'bad'"):
            world.run([*items(4), BatchItem(item_id="bad", payload=prompt)])
        assert world.batches() == 0

    @pytest.mark.parametrize("made", [None, 7, PromptParts(prompt=None), "\ud800"])  # type: ignore[arg-type]
    def test_a_builder_that_makes_no_prompt_names_its_item(self, world: World, made: Any) -> None:
        """A mistake in the user's function could not be traced to a row."""
        build = {"item-3": made}
        with pytest.raises(SourceError, match=r"row 3 .*'item-3'"):
            world.run(4, build_prompt=lambda item: build.get(item.item_id, item.payload))
        assert world.batches() == 0

    def test_a_template_over_payloads_without_columns(self, world: World) -> None:
        """The template would be ignored without a word."""
        with pytest.raises(ConfigurationError, match="'item-0'"):
            world.run(2, prompt_template="Summarise: {text}")
        assert world.batches() == 0

    def test_an_error_in_the_middle_of_a_file_sends_nothing(self, world: World) -> None:
        """Half of a broken file would be sent and paid for."""
        path = world.folder / "broken.jsonl"
        good = [f'{{"prompt": "p{n}"}}' for n in range(8)]
        path.write_text("\n".join([*good, '{"prompt": ', *good]))
        source = JsonlItemSource(path, block_rows=2)
        with pytest.raises(SourceError, match=r"broken\.jsonl"):
            world.run(source, chunk_policy=THREES)
        assert world.batches() == 0
        path.write_text("\n".join(good))
        run = world.run(JsonlItemSource(path, block_rows=2), chunk_policy=THREES)
        assert run.status == "succeeded"
        assert len(run.results()) == 8

    def test_columns_are_checked_before_a_run_is_recorded(self, world: World) -> None:
        """A typo would leave a run behind that can never go on."""
        with pytest.raises(MissingColumnError, match="'prompt'"):
            world.run(pl.DataFrame({"text": ["a"]}))
        assert world.runner.list_runs() == []

    def test_a_kept_column_that_is_missing(self, world: World) -> None:
        """The error would only come when money was spent."""
        with pytest.raises(MissingColumnError, match="'nope'"):
            world.run(pl.DataFrame({"prompt": ["a"]}), keep={"nope": "string"})
        assert world.batches() == 0

    def test_a_kept_value_of_another_type(self, world: World) -> None:
        """A value that does not fit would be changed without a word."""
        with pytest.raises(SourceError, match="'n'"):
            world.run(pl.DataFrame({"prompt": ["a"], "n": ["x"]}), keep={"n": "int64"})
        assert world.batches() == 0


class TestResuming:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("probe", ["ingest.sealed", "ingest.committed", "ingest.finished"])
    def test_goes_on_behind_the_last_chunk(self, world: World, kind: str, probe: str) -> None:
        """Rows would be lost or doubled where reading was cut short."""
        run = self._cut_short(world, kind, probe)
        assert run.refresh().status in {"ingesting", "running"}
        run = world.run(write(kind, world.folder), **_ids(kind))
        assert run.status == "succeeded"
        check_conserved(run, ROWS)
        for n, result in enumerate(run.results()):
            assert (result.output_text or "").endswith(f": Prompt number {n};")

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "frame", "list"])
    def test_does_not_read_again_what_is_sealed(self, world: World, kind: str) -> None:
        """A million rows would be read from the start after each interruption."""
        self._cut_short(world, kind, "ingest.committed")
        before = world.runner.store.list_chunks("run-1")
        assert len(before) == 1
        world.run(write(kind, world.folder), chunk_policy=THREES, **_ids(kind))
        after = world.runner.store.list_chunks("run-1")
        assert after[0].items == before[0].items
        assert len(after) == 4

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("change", ["word", "fewer", "more"])
    def test_a_changed_source_begins_again(self, world: World, kind: str, change: str) -> None:
        """Rows of two versions of the input would be mixed in one run."""
        self._cut_short(world, kind, "ingest.committed")
        rows = {"word": ROWS, "fewer": 2, "more": 14}[change]
        word = "Other" if change == "word" else "Prompt"
        run = world.run(write(kind, world.folder, rows, word), **_ids(kind))
        assert run.status == "succeeded"
        check_conserved(run, rows)
        assert all(word in (r.output_text or "") for r in run.results())

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_equal_rerun_submits_nothing(self, world: World, kind: str) -> None:
        """Starting a job again would pay for everything again."""
        world.run(write(kind, world.folder), **_ids(kind))
        before = world.batches()
        run = world.run(write(kind, world.folder), **_ids(kind))
        assert run.status == "succeeded"
        assert world.batches() == before

    @pytest.mark.parametrize("kind", KINDS)
    def test_other_rows_under_a_known_id_are_refused(self, world: World, kind: str) -> None:
        """Results of the old input would be handed out for the new one."""
        world.run(write(kind, world.folder), **_ids(kind))
        with pytest.raises(FingerprintMismatchError, match="run-1"):
            world.run(write(kind, world.folder, ROWS + 1), **_ids(kind))
        with pytest.raises(FingerprintMismatchError, match="run-1"):
            world.run(write(kind, world.folder, ROWS, "Other"), **_ids(kind))

    def test_another_declaration_under_a_known_id_is_refused(self, world: World) -> None:
        """Results of another model or prompt would be handed out."""
        world.run(4)
        for other in ({"system_prompt": "Be brief."}, {"config": {"model": "gpt-4.1"}}):
            with pytest.raises(FingerprintMismatchError, match="run-1"):
                world.run(4, **other)
        assert world.batches() == 1

    def test_another_process_without_the_source_says_so(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run whose reading was cut short would stand still without a reason."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        self._cut_short(world, "list", "ingest.committed")
        with pytest.raises(RunIngestionSourceRequiredError, match="start it again"):
            world.new_runner().get_run("run-1").wait()

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_time_box_cuts_reading_short(self, world: World, kind: str) -> None:
        """Reading in time boxes would lose rows, or fail for inputs that are read only once."""
        clock = world.clock
        runner = world.new_runner(
            probe=lambda name: clock.sleep(5) if name == "ingest.committed" else None
        )
        job = world.job(write(kind, world.folder), chunk_policy=THREES, **_ids(kind))
        run = runner.open(job, run_id="run-1")
        for _ in range(10):
            run.advance(5)
        run.wait()
        check_conserved(run, ROWS)

    def _cut_short(self, world: World, kind: str, probe: str) -> Run:
        runner = world.new_runner(probe=_raise_once(probe))
        source = write(kind, world.folder)
        job = world.job(source, chunk_policy=THREES, **_ids(kind))
        run = runner.open(job, run_id="run-1")
        with pytest.raises(_StopError):
            run.advance()
        return run


class TestChunks:
    def test_bounds_of_requests_bytes_and_tokens_hold(self, world: World) -> None:
        """A batch would be larger than the user or the provider allows."""
        run = world.open(30, chunk_policy=ChunkPolicy(max_requests=7)).ingest()
        assert [c.item_count for c in world.runner.store.list_chunks(run.run_id)] == [7] * 4 + [2]
        limit = 1_000
        run = world.open(30, run_id="run-2", chunk_policy=ChunkPolicy(max_bytes=limit)).ingest()
        sizes = [c.requests.size_bytes for c in world.runner.store.list_chunks("run-2")]
        assert max(sizes) <= limit
        assert sum(c.item_count for c in world.runner.store.list_chunks("run-2")) == 30
        run = world.open(30, run_id="run-3", chunk_policy=ChunkPolicy(max_tokens=100)).ingest()
        assert len(world.runner.store.list_chunks(run.run_id)) > 3

    def test_reading_sends_nothing(self, world: World) -> None:
        """``ingest`` alone would spend money."""
        run = world.open(9, chunk_policy=THREES).ingest()
        assert run.status == "running"
        assert world.batches() == 0
        assert "ingest" in HEAVY_STEPS

    def test_a_prompt_builder_over_a_frame_sees_the_row(self, world: World) -> None:
        """The function would get another row than the one it answers for."""
        rows = pl.DataFrame({"id": ["item-0", "item-1"], "text": ["a", "b"]})
        run = world.run(
            rows, id_column="id", build_prompt=lambda i: f"{i.item_id}={i.payload['text']}"
        )
        assert [(r.output_text or "")[-8:] for r in run.results()] == ["item-0=a", "item-1=b"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
def test_memory_stays_flat(tmp_path: Path) -> None:
    """A large input would not fit into memory."""
    peaks = [_peak_bytes(tmp_path / str(rows), rows) for rows in (50_000, 300_000)]
    assert peaks[1] - peaks[0] < 60_000_000  # six times the rows, 80 MB more of input


def _peak_bytes(folder: Path, rows: int) -> int:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.core.ingest_child", str(folder), str(rows)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    return int(done.stdout)


class _StopError(Exception):
    pass


def _raise_once(stop: str) -> Callable[[str], None]:
    stops = iter([stop])
    wanted = next(stops)

    def probe(name: str) -> None:
        nonlocal wanted
        if name == wanted:
            wanted = ""
            raise _StopError(name)

    return probe


def _ids(kind: str) -> dict[str, Any]:
    return {"id_column": "id"} if kind in {"frame", "lazy"} else {}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return iter((None,))
