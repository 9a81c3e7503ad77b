"""Runs whose files are lost, altered, elsewhere, or cannot be written."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem

from batchor_core import BatchRunner, Run
from batchor_core.errors import ArtifactError, ArtifactUnavailableError, RunPausedError
from batchor_core.model.policies import ChunkPolicy
from tests.core.world import Verdict, World, check_conserved

THREES = ChunkPolicy(max_requests=3)


def find(world: World, kind: str, number: int = 0) -> Path:
    """One of the run's files."""
    return sorted((world.artifacts / "runs" / "run-1" / kind).iterdir())[number]


def lose(path: Path) -> Callable[[], object]:
    """Take a file away; what is returned puts it back."""
    data = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(data)


def alter(path: Path) -> Callable[[], object]:
    """Change one byte of a file; what is returned changes it back."""
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return lambda: path.write_bytes(data)


class TestDamage:
    @pytest.mark.parametrize("damage", [lose, alter])
    @pytest.mark.parametrize("kind", ["items", "requests", "outcomes"])
    def test_pauses_the_run_and_names_the_file(
        self, world: World, damage: Callable[[Path], Callable[[], object]], kind: str
    ) -> None:
        """Wrong or missing rows would go unnoticed, or the run be lost for good."""
        world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 1;"})
        run = world.open(6, chunk_policy=THREES)
        if kind == "requests":
            run.ingest()
        else:
            run.advance()
        if kind == "outcomes":
            world.clock.sleep(200)
            run.advance()
        path = find(world, kind)
        mend = damage(path)
        with pytest.raises(RunPausedError, match=path.name):
            run.wait()
        mend()
        run.resume().wait()
        assert run.status == "succeeded"
        check_conserved(run, 6)

    def test_one_lost_file_does_not_hold_up_the_others(self, world: World) -> None:
        """Results of healthy chunks would expire at the provider."""
        run = world.open(9, chunk_policy=THREES)
        run.advance()
        mend = lose(find(world, "items", 0))
        world.clock.sleep(200)
        with pytest.raises(RunPausedError):
            run.wait()
        run.advance()
        assert run.counts().ok == 6
        mend()
        run.resume().wait()
        check_conserved(run, 9)

    def test_a_run_with_lost_files_can_be_cancelled(self, world: World) -> None:
        """The run would stay open for ever."""
        run = world.open(6, chunk_policy=THREES)
        run.advance()
        find(world, "items", 0).unlink()
        run.cancel().wait()
        assert run.status == "failed"
        assert run.record.error_code == "artifacts_lost"
        assert run.record.error_message
        with pytest.raises(ArtifactError, match="run-1"):
            run.results()
        with pytest.raises(ArtifactError, match="run-1"):
            run.results_frame()

    def test_a_cancel_with_a_lost_file_waits_for_what_can_be_collected(self, world: World) -> None:
        """Answers of healthy chunks that come a little later would be paid for and discarded."""
        run = world.open(9, chunk_policy=THREES)
        run.advance()
        find(world, "items", 0).unlink()
        world.clock.sleep(200)
        world.sim.faults(kind="http_error", status=404, times=4, match={"route": "files.content"})
        run.cancel().advance()
        assert not run.is_finished
        run.wait()
        assert (run.status, run.record.error_code) == ("failed", "artifacts_lost")
        assert run.counts().ok == 6

    def test_altered_results_are_not_handed_out(self, world: World) -> None:
        """Changed results would be taken for what the model said."""
        run = world.run()
        alter(find(world, "results"))
        for read in (run.results, run.results_frame, lambda: list(run.result_parts())):
            with pytest.raises(ArtifactError, match="results/"):
                read()


class TestFullDisk:
    @pytest.mark.parametrize("after", range(0, 14, 2))
    def test_the_run_survives_and_goes_on(
        self, world: World, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        """A full disk would lose rows, or end the run with a traceback each time."""
        run = world.open(6, chunk_policy=THREES, structured_output=Verdict)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _Full(after))
            try:
                run.wait()
            except RunPausedError as exc:
                assert "No space left" in str(exc)  # noqa: PT017 - it need not come to that
        if not run.is_finished:
            run.resume().wait()
        assert run.status == "succeeded"
        check_conserved(run, 6)
        assert world.batches() == 2

    @pytest.mark.parametrize("after", range(0, 10, 2))
    def test_a_run_under_cancel_keeps_what_was_paid(
        self, world: World, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        """A full disk would close the run, and paid answers never be collected or handed out."""
        run = world.open(6, chunk_policy=THREES, structured_output=Verdict)
        run.advance()
        world.clock.sleep(200)
        run.cancel("not wanted")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _Full(after))
            for _ in range(4):
                run.advance()
                world.clock.sleep(30)
        assert run.status in {"running", "cancelled"}
        run.wait()
        assert run.status == "cancelled"
        assert run.counts().ok == 6
        check_conserved(run, 6)

    def test_a_download_onto_a_full_disk(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Results that do not fit would be lost, or crash each cycle."""
        run = world.open()
        run.advance()
        opened = Path.open

        def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if mode == "wb" and world.artifacts in self.parents:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return opened(self, mode, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full)
            with pytest.raises(RunPausedError, match="No space left"):
                run.wait()
        run.resume().wait()
        check_conserved(run, 6)
        assert world.batches() == 1


class TestElsewhere:
    def test_a_whole_run_on_an_object_store(self, world: World) -> None:
        """Runs would need a local disk that all processes share."""
        world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 1;"})
        with BatchRunner(world.db, "memory://whole-run", clock=world.clock) as runner:
            run = runner.run_and_wait(
                world.job(9, chunk_policy=THREES, structured_output=Verdict), run_id="run-1"
            )
            check_conserved(run, 9)
            frame = run.results_frame().collect()
            assert frame.height == 9
            assert frame.to_arrow().schema.names == run.plan.result_schema.names
            assert run.export_terminal_results(str(world.folder / "out.parquet")) == 9


class Unreachable(MemoryFileSystem):
    """A place to which some uploads break off, the next one first."""

    protocol = "unreachable"
    broken = 0

    def put_file(self, *args: Any, **kwargs: Any) -> Any:
        if Unreachable.broken:
            Unreachable.broken -= 1
            raise ConnectionResetError
        return super().put_file(*args, **kwargs)


fsspec.register_implementation("unreachable", Unreachable, clobber=True)


class TestOutage:
    @pytest.fixture(params=["ingest", "send", "start"])
    def go(self, request: pytest.FixtureRequest, world: World) -> Iterator[Callable[[], Run]]:
        """Reads the input, in each way that does not wait for answers."""
        url = f"unreachable://{world.folder.parent.name}"
        with BatchRunner(world.db, url, clock=world.clock) as runner:

            def go() -> Run:
                if request.param == "start":
                    return runner.start(world.job(), run_id="run-1")
                return getattr(runner.open(world.job(), run_id="run-1"), request.param)()

            yield go
        Unreachable.broken = 0

    @pytest.mark.timeout(10)
    def test_a_short_one_is_borne(self, world: World, go: Callable[[], Run]) -> None:
        """A single broken connection would end the program, or be answered by a busy loop."""
        Unreachable.broken = 2
        run = go()
        assert run.status == "running"
        assert 60 <= world.clock.monotonic() < 70, "two poll intervals"
        run.wait()
        check_conserved(run, 6)

    @pytest.mark.timeout(10)
    def test_a_long_one_is_told(self, world: World, go: Callable[[], Run]) -> None:
        """The program would try for ever, or end as if it had read its input."""
        Unreachable.broken = 100
        with pytest.raises(ArtifactUnavailableError, match="requests/"):
            go()
        assert Unreachable.broken == 97
        Unreachable.broken = 0
        run = go()
        assert run.status == "running"
        run.wait()
        check_conserved(run, 6)
        assert world.batches() == 1

    def test_a_disk_that_is_full_ends_the_reading(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A step would go on with a run of which nothing was read."""
        run = world.open()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _Full(0))
            with pytest.raises(RunPausedError, match="No space left"):
                run.ingest()
        assert run.resume().ingest().status == "running"


class TestFiles:
    def test_a_run_leaves_its_files_and_no_others(self, world: World) -> None:
        """Temporary files would pile up, or files be readable by others."""
        run = world.run(6, chunk_policy=THREES)
        for path in world.artifacts.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        names = {p.parent.name for p in world.artifacts.rglob("*") if p.is_file()}
        assert names == {"items", "requests", "raw", "outcomes", "results"}
        assert [p for p in world.artifacts.rglob("*.tmp") if p.is_file()] == []
        assert list((world.artifacts / "spool").iterdir()) == []
        assert _raw_lines(world, run) == 6

    def test_the_key_is_in_no_file(self, world: World) -> None:
        """Whoever reads the files or the database would have the user's key."""
        run = world.open(config={"api_key": "sk-very-secret"})
        world.sim.faults(kind="http_error", status=401, times=1, match={"route": "files.create"})
        with pytest.raises(RunPausedError):
            run.wait()
        run.resume().wait()
        world.runner.close()
        for path in world.folder.rglob("*"):
            if path.is_file():
                assert b"very-secret" not in path.read_bytes(), path


def _raw_lines(world: World, run: Run) -> int:
    count = 0
    for path in (world.artifacts / "runs" / run.run_id / "raw").iterdir():
        with path.open("rb") as file:
            count += zstandard.ZstdDecompressor().stream_reader(file).read().count(b"\n")
    return count


class _Full:
    """``os.fsync`` of a disk that is full after some files."""

    def __init__(self, after: int) -> None:
        self._left = after
        self._fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(descriptor)
