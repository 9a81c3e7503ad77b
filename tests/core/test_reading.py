"""Reading and exporting finished items while the run goes on."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from batchor_core import BatchItem, Run
from batchor_core.errors import ConfigurationError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy
from batchor_core.results import appending
from tests.core.world import Verdict, World, statuses

TWOS = ChunkPolicy(max_requests=2)
UPLOAD = {"route": "files.create"}
EMBEDDINGS = {"endpoint": "embeddings", "model": "text-embedding-3-small", "dimensions": 8}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")  # other processes take it from there


def drain(run: Run, after: int, limit: int = 3) -> tuple[list[Any], int, bool]:
    """All items that are finished now, page by page."""
    found: list[Any] = []
    while True:
        page = run.read_terminal_results(after, limit)
        assert page.next_sequence == after + len(page.items)
        found += page.items
        after = page.next_sequence
        if page.is_complete or not page.items:
            return found, after, page.is_complete


def read_to_the_end(run: Run, world: World, limit: int = 3) -> list[Any]:
    """All items, read between any two cycles."""
    found: list[Any] = []
    after, is_complete = 0, False
    while not is_complete:
        more, after, is_complete = drain(run, after, limit)
        found += more
        assert len(found) == (run.counts().ok + run.counts().failed)
        if not run.is_finished:
            run.advance()
            world.clock.sleep(20)
    return found


def by_id(items: Any) -> dict[str, Any]:
    """The items by their ids; none may be there twice."""
    found = {item.item_id: item for item in items}
    assert len(found) == len(items), "an item was read twice"
    return found


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_every_item_is_read_once_over_many_rounds(world: World, limit: int) -> None:
    """An item that becomes final late would be skipped, or one that is final early seen twice."""
    world.sim.faults(kind="line_error", status=500, rounds=2, match={"prompt": "number 1;"})
    world.sim.faults(kind="line_error", status=400, match={"prompt": "number 4;"})
    world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 7;"})
    run = world.open(10, chunk_policy=TWOS, retry_policy=RetryPolicy(delay_s=1, max_attempts=5))
    found = read_to_the_end(run, world, limit)
    assert by_id(found) == by_id(run.results())
    assert [item.item_id for item in found] != [item.item_id for item in run.results()]
    assert found[-1].item_id == "item-1"


def test_another_process_reads_on(world: World) -> None:
    """A reader that is restarted would have to begin again, or lose its place."""
    run = world.open(6, chunk_policy=TWOS)
    run.advance()
    world.clock.sleep(150)
    run.advance()
    first = run.read_terminal_results(0, 4)
    assert (len(first.items), first.next_sequence, first.is_complete) == (4, 4, False)
    run.wait()
    other = world.new_runner().get_run("run-1")
    second = other.read_terminal_results(first.next_sequence)
    assert second.is_complete
    assert by_id([*first.items, *second.items]) == by_id(run.results())
    assert other.read_terminal_results(6).items == []
    assert other.read_terminal_results(6).is_complete


def test_models_metadata_and_vectors_come_along(world: World) -> None:
    """A page would hold less of an item than the results of the finished run."""
    rows = [BatchItem(item_id=f"k{n}", payload=f"Prompt {n};", metadata={"n": n}) for n in range(3)]
    run = world.run(rows, structured_output=Verdict)
    page = run.read_terminal_results()
    assert by_id(page.items) == by_id(run.results())
    assert all(isinstance(item.output, Verdict) for item in page.items)
    vectors = world.run(3, run_id="vectors", config=EMBEDDINGS)
    assert by_id(vectors.read_terminal_results().items) == by_id(vectors.results())


def test_nothing_is_finished_yet(world: World) -> None:
    """A reader that is early would fail, or take a run without results for a complete one."""
    run = world.open()
    assert (run.read_terminal_results().items, run.read_terminal_results().is_complete) == (
        [],
        False,
    )
    run.advance()
    page = run.read_terminal_results()
    assert (page.items, page.next_sequence, page.is_complete) == ([], 0, False)


def test_rows_that_are_given_up_or_cancelled_are_read_too(world: World) -> None:
    """Rows that never got an outcome of their own would be missing from the pages."""
    world.sim.faults(kind="http_error", status=413, times=4, match=UPLOAD)
    world.sim.faults(kind="line_error", status=500, match={"prompt": "number 3;"})
    retry = RetryPolicy(delay_s=5000, max_attempts=5)
    run = world.open(6, chunk_policy=TWOS, retry_policy=retry)
    run.advance()
    world.clock.sleep(150)
    run.advance()
    world.clock.sleep(150)
    run.advance()
    early, after, is_complete = drain(run, 0, 2)
    assert not is_complete
    assert "request_too_large" in {item.error["code"] for item in early if item.error}
    run.cancel("not wanted").wait()
    late, after, is_complete = drain(run, after, 2)
    assert is_complete
    assert {item.error["code"] for item in late if item.error} == {"run_cancelled"}
    assert by_id([*early, *late]) == by_id(run.results())
    assert [i.item_id for i in drain(run, 0, 1)[0]] == [i.item_id for i in [*early, *late]]


def test_a_run_cancelled_before_anything_was_sent(world: World) -> None:
    """Its rows would be nowhere."""
    run = world.open(7, chunk_policy=TWOS)
    run.ingest().cancel("no")
    run.wait()
    items, after, _ = drain(run, 0, 2)
    assert (by_id(items), after) == (by_id(run.results()), 7)


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _full_disk_after(call: Callable[..., None], times: int) -> Callable[..., None]:
    """Let a call pass so often, and then find no space left."""
    left = [call] * times

    def once_more(*arguments: object) -> None:
        (left.pop() if left else _full_disk)(*arguments)

    return once_more


SUFFIXES = pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out"])


def table_of(path: Path) -> pl.DataFrame:
    """What an export holds."""
    if path.suffix == ".jsonl":
        return pl.read_ndjson(path)
    if path.suffix == ".csv":
        return pl.read_csv(path, null_values="")
    return pl.concat([pl.read_parquet(part) for part in sorted(path.glob("*.parquet"))])


def in_order(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows that can be compared, whatever order they came in."""
    columns = ["item_id", "batch_status", "batch_error_code", "batch_attempts", "batch_cost_usd"]
    return sorted(frame.select(columns).rows())


class TestAppend:
    @SUFFIXES
    def test_an_export_grows_with_the_run(self, world: World, tmp_path: Path, name: str) -> None:
        """Rows would be lost between two appends, or lack what earlier tries have cost."""
        world.sim.faults(kind="invalid_json_answer", rounds=1, match={"prompt": "number 1;"})
        world.sim.faults(kind="line_error", status=400, match={"prompt": "number 4;"})
        path = tmp_path / name
        run = world.open(8, chunk_policy=TWOS, structured_output=Verdict)
        added = []
        while True:
            done = run.append_terminal_results(str(path))
            added.append(done.rows)
            if done.is_complete:
                break
            run.advance()
            world.clock.sleep(20)
        assert sum(added) == done.next_sequence == 8
        assert sum(map(bool, added)) > 1
        assert in_order(table_of(path)) == in_order(run.results_frame().collect())
        again = world.new_runner().get_run("run-1").append_terminal_results(str(path))
        assert (again.rows, again.next_sequence, again.is_complete) == (0, 8, True)

    @pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
    def test_half_written_lines_are_cut_off(self, world: World, tmp_path: Path, name: str) -> None:
        """A process that died while it appended would leave broken or doubled lines behind."""
        path = tmp_path / name
        run = world.open(6, chunk_policy=TWOS)
        run.advance()
        world.clock.sleep(150)
        run.advance()
        run.append_terminal_results(str(path))
        with path.open("a") as file:
            file.write('{"item_id": "item-')
        run.wait()
        run.append_terminal_results(str(path))
        assert in_order(table_of(path)) == in_order(run.results_frame().collect())

    @pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
    def test_the_first_append_may_be_cut_short(
        self, world: World, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its half-written file would be taken for somebody else's ever after."""
        run = world.run(4)
        path = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(appending, "_note", _full_disk_after(appending._note, 1))
            with pytest.raises(ConfigurationError, match="No space left"):
                run.append_terminal_results(str(path))
        assert path.stat().st_size
        run.append_terminal_results(str(path))
        assert in_order(table_of(path)) == in_order(run.results_frame().collect())

    def test_an_interrupted_part_is_written_again(self, world: World, tmp_path: Path) -> None:
        """A half-written Parquet file would be read with the others."""
        run = world.run(4)
        (tmp_path / "parts").mkdir()
        broken = tmp_path / "parts" / ".run-1.000000000000-000000000004.parquet.tmp"
        broken.write_bytes(b"PAR1")
        assert run.append_terminal_results(str(tmp_path / "parts")).rows == 4
        assert [p.name for p in (tmp_path / "parts").iterdir()] == [
            "run-1.000000000000-000000000004.parquet"
        ]

    @pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
    def test_anothers_file_is_left_alone(self, world: World, tmp_path: Path, name: str) -> None:
        """Rows of two runs would be mixed, or a file of somebody else's be cut."""
        path = tmp_path / name
        world.run(2).append_terminal_results(str(path))
        other = world.run(2, run_id="other")
        with pytest.raises(ConfigurationError, match="holds results of run 'run-1'"):
            other.append_terminal_results(str(path))
        foreign = tmp_path / f"foreign-{name}"
        foreign.write_text("mine\n")
        with pytest.raises(ConfigurationError, match="was not begun by an append"):
            other.append_terminal_results(str(foreign))
        assert foreign.read_text() == "mine\n"
        path.write_text("")
        with pytest.raises(ConfigurationError, match="shorter than it was"):
            world.runner.get_run("run-1").append_terminal_results(str(path))

    def test_runs_may_share_a_folder(self, world: World, tmp_path: Path) -> None:
        """The second run's rows would be taken for the first one's."""
        world.run(2).append_terminal_results(str(tmp_path / "all"))
        world.run(3, run_id="other").append_terminal_results(str(tmp_path / "all"))
        assert table_of(tmp_path / "all").height == 5

    def test_a_parquet_file_cannot_grow(self, world: World, tmp_path: Path) -> None:
        """The file would be rewritten each time, or only hold the last rows."""
        run = world.run(1)
        with pytest.raises(ConfigurationError, match="name a folder"):
            run.append_terminal_results(str(tmp_path / "out.parquet"))
        with pytest.raises(ConfigurationError, match="cannot write"):
            run.append_terminal_results(str(tmp_path / "no" / "such" / "out.jsonl"))

    def test_long_exports_are_written_in_stretches(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A million rows would be held in memory at once."""
        monkeypatch.setattr("batchor_core.results.appending.ITEMS_AT_ONCE", 2)
        run = world.run(5)
        run.append_terminal_results(str(tmp_path / "parts"))
        heights = [pl.read_parquet(p).height for p in sorted((tmp_path / "parts").iterdir())]
        assert heights == [2, 2, 1]
        run.append_terminal_results(str(tmp_path / "out.jsonl"))
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        assert [json.loads(line)["item_id"] for line in lines] == list(statuses(run))


def test_reused_answers_are_read_in_their_turn(world: World) -> None:
    """Answers that cost nothing would be missing while the run goes on."""
    world.run(4)
    rows = [BatchItem(item_id=f"new-{n}", payload=f"Prompt number {n};") for n in range(6)]
    run = world.open(rows, run_id="next", reuse=_reuse_of("run-1"))
    found = read_to_the_end(run, world)
    assert by_id(found) == by_id(run.results())
    assert run.counts().reused == 4


def _reuse_of(run_id: str) -> Any:
    from batchor_core.model.policies import ReusePolicy

    return ReusePolicy(run_ids=(run_id,))


Reader = Callable[[Run], Any]


@pytest.mark.parametrize(
    "read",
    [
        lambda run: run.read_terminal_results(),
        lambda run: run.results(),
    ],
)
def test_pruned_items_are_called_pruned(world: World, read: Reader) -> None:
    """Files that were removed on purpose would be reported as lost."""
    run = world.run(3)
    run.prune_artifacts(["items"])
    from batchor_core import ArtifactPrunedError

    with pytest.raises(ArtifactPrunedError, match="items files of run 'run-1' were pruned"):
        read(run)
    assert run.results_frame().collect().height == 3
