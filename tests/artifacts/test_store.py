"""Files of the data plane: whole or not at all, private, and checked before each use."""

import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchor_core.artifacts import ArtifactStore, LocalArtifactStore, RunLayout
from batchor_core.errors import ArtifactAlteredError, ArtifactError, ArtifactMissingError
from batchor_core.model.records import ArtifactRef

PATH = "runs/r/items/00000-1.parquet"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    """An empty store on each kind of root."""
    if request.param == "local":
        made: ArtifactStore = LocalArtifactStore(tmp_path / "root")
    else:
        made = ArtifactStore(f"memory://{tmp_path.name}")
    yield made
    made.close()


def put(store: ArtifactStore, data: bytes = b"hello", path: str = PATH) -> ArtifactRef:
    """Write a file."""
    with store.writer(path) as file:
        file.write(data[:2])
        file.write(memoryview(data)[2:])
        return file.commit()


def spool_of(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where transfers go; no other test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with store.spool() as folder:
        return folder.parent if store.is_local else tmp_path


def killed_while_downloading(store: ArtifactStore) -> None:
    """Leave behind what a process does that is killed during a transfer."""
    child = os.fork()
    if child == 0:
        with store.spool() as folder:
            (folder / "answers").write_bytes(b"in clear text")
            os._exit(9)
    os.waitpid(child, 0)


def answers_below(folder: Path) -> list[Path]:
    """The downloads."""
    return [path for path in folder.rglob("answers") if path.is_file()]


class TestLeftovers:
    @pytest.mark.parametrize("way", ["next store", "removed"])
    def test_those_of_a_killed_process_go(
        self, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
    ) -> None:
        """Answers would lie about in clear text for ever."""
        spool = spool_of(store, monkeypatch, tmp_path)
        with store.spool() as mine:
            (mine / "answers").write_bytes(b"of a living process")
            killed_while_downloading(store)
            assert len(answers_below(spool)) == 2
            if way == "removed":
                store.remove_leftovers()
            else:
                with ArtifactStore(store.root) as another, another.spool():
                    pass
            assert answers_below(spool) == [mine / "answers"]

    def test_a_living_child_keeps_its_downloads(
        self, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A process would remove what another one is reading."""
        spool_of(store, monkeypatch, tmp_path)
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            with store.spool() as folder:
                (folder / "answers").write_bytes(b"x")
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                os._exit(0 if (folder / "answers").exists() else 1)
        os.read(ready[0], 1)
        store.remove_leftovers()
        os.write(go[1], b"x")
        assert os.waitpid(child, 0)[1] == 0

    def test_a_child_that_leaves_the_block_of_its_parent(self, store: ArtifactStore) -> None:
        """A forked child would take the downloads away under its parent's eyes."""
        parent = os.getpid()
        try:
            with store.spool() as folder:
                child = os.fork()
                if child:
                    assert os.waitpid(child, 0)[1] == 0
                    assert folder.is_dir()
        finally:
            if os.getpid() != parent:
                os._exit(0)

    @pytest.mark.parametrize("name", ["another-machine@x", "tmpx", "another machine"])
    def test_those_of_other_machines_go_by_age(
        self, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        """On a shared disk a lock may say nothing of a process on another machine."""
        spool = spool_of(store, monkeypatch, tmp_path)
        folder = spool / (name if store.is_local else f"batchor-spool-{name}")
        folder.mkdir()
        answers = folder / "answers"
        answers.write_bytes(b"x")
        os.utime(folder, (0, 0))
        store.remove_leftovers()
        assert answers.exists(), "it is still being written"
        two_days_ago = time.time() - 2 * 24 * 3600
        os.utime(answers, (two_days_ago, two_days_ago))
        store.remove_leftovers()
        assert not folder.exists()


class TestContent:
    def test_what_was_written_is_read(self, store: ArtifactStore) -> None:
        """Files would come back changed."""
        ref = put(store)
        assert (ref.path, ref.size_bytes) == (PATH, 5)
        with store.local(ref) as path:
            assert path.read_bytes() == b"hello"

    def test_an_empty_file(self, store: ArtifactStore) -> None:
        """A file without content would count as missing."""
        with store.local(put(store, b"")) as path:
            assert path.read_bytes() == b""

    def test_a_missing_file_is_named(self, store: ArtifactStore) -> None:
        """Nobody could tell which file to restore."""
        ref = put(store)
        store.delete(PATH)
        store.delete(PATH)  # gone already
        with pytest.raises(ArtifactMissingError, match=PATH), store.local(ref):
            pass

    @pytest.mark.parametrize("other", [b"hell0", b"hello!", b""])
    def test_an_altered_file_is_named(self, store: ArtifactStore, other: bytes) -> None:
        """A file that was cut short or changed would be taken for the real one."""
        ref = put(store)
        store.delete(PATH)
        put(store, other)
        with pytest.raises(ArtifactAlteredError, match=PATH), store.local(ref):
            pass

    def test_a_folder_is_removed_with_all_in_it(self, store: ArtifactStore) -> None:
        """Pruning would leave files behind."""
        ref = put(store)
        store.delete_folder("runs/r")
        store.delete_folder("runs/r")
        with pytest.raises(ArtifactMissingError), store.local(ref):
            pass

    def test_a_spool_folder_is_gone_afterwards(self, store: ArtifactStore) -> None:
        """Downloads would fill the disk."""
        with store.spool() as folder:
            (folder / "download").write_bytes(b"x")
        assert not folder.exists()

    def test_many_threads_write_side_by_side(self, store: ArtifactStore) -> None:
        """Temporary files of two writers would be mixed up."""
        refs: list[ArtifactRef] = []

        def write(number: int) -> None:
            refs.append(put(store, str(number).encode() * 1000, f"runs/r/{number}"))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ref in refs:
            with store.local(ref) as path:
                assert set(path.read_text()) == {ref.path[-1]}


class TestAtomicity:
    def test_nothing_is_there_before_the_commit(self, tmp_path: Path) -> None:
        """Somebody could read half a file."""
        store = LocalArtifactStore(tmp_path)
        with store.writer(PATH) as file:
            file.write(b"half")
            assert not (tmp_path / PATH).exists()
            file.commit()
        assert (tmp_path / PATH).read_bytes() == b"half"

    def test_leaving_without_a_commit_leaves_nothing(self, store: ArtifactStore) -> None:
        """Failed steps would fill the disk."""
        with store.writer(PATH) as file:
            file.write(b"half")
        ref = ArtifactRef(path=PATH, size_bytes=4, sha256="0" * 64)
        with pytest.raises(ArtifactMissingError), store.local(ref):
            pass

    def test_an_exception_leaves_nothing(self, tmp_path: Path) -> None:
        """Failed steps would fill the disk."""
        store = LocalArtifactStore(tmp_path)

        def fail() -> None:
            with store.writer(PATH) as file:
                file.write(b"half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert [p for p in tmp_path.rglob("*") if p.is_file()] == []

    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """A full disk would leave half a file, or end in an error that nobody handles."""
        store = LocalArtifactStore(tmp_path)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def fail(*_: object) -> None:
            raise full

        with monkeypatch.context() as patch:
            patch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), fail)
            with pytest.raises(ArtifactError, match="No space left"):
                put(store)
        assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
        with store.local(put(store)) as path:
            assert path.read_bytes() == b"hello"

    def test_new_names_are_durable_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a power failure the records would point at files that are not there."""
        synced = set()

        def note(descriptor: int) -> None:
            synced.add(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", note)
        ref = put(LocalArtifactStore(tmp_path / "new" / "root"))
        file = tmp_path / "new" / "root" / ref.path
        above = [parent for parent in file.parents if parent.is_relative_to(tmp_path)]
        assert {path.stat().st_ino for path in [file, *above]} == synced

    def test_a_root_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        """The message would not say where to look."""
        (tmp_path / "root").write_text("a file")
        with pytest.raises(ArtifactError, match="root"):
            put(LocalArtifactStore(tmp_path / "root"))


class TestPrivacy:
    def test_folders_and_files_are_the_owners_alone(self, tmp_path: Path) -> None:
        """Other users of the machine could read prompts and answers."""
        before = os.umask(0)
        try:
            store = LocalArtifactStore(tmp_path / "root")
            put(store)
            with store.spool() as folder:
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        finally:
            os.umask(before)
        for path in (tmp_path / "root").rglob("*"):
            expected = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == expected, path
        assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


class TestLayout:
    def test_every_path_stays_below_the_runs_folder(self) -> None:
        """A run's name could reach files of another run, or outside of the root."""
        for run_id in ("../x", "/etc", "a/b", "..", ".", "", "ü" * 300, "a\0b"):
            folder = RunLayout(run_id=run_id).folder
            assert folder.startswith("runs/")
            assert folder.count("/") == 1
            assert folder.rpartition("/")[2] not in {"", ".", ".."}
            assert len(folder) <= 205

    def test_paths_are_what_is_stored(self) -> None:
        """Files of runs that exist would not be found any more."""
        layout = RunLayout(run_id="r")
        assert layout.items(3, 7) == "runs/r/items/00003-7.parquet"
        assert layout.requests(3, 7) == "runs/r/requests/00003-7.jsonl"
        assert layout.outcomes("sub_1", 7) == "runs/r/outcomes/sub_1-7.parquet"
        assert layout.results(3, 7) == "runs/r/results/00003-7.parquet"
        assert layout.raw("sub_1", 7, "output", 0) == "runs/r/raw/sub_1-7.output.jsonl.zst"
        assert layout.raw("sub_1", 7, "output", 1) == "runs/r/raw/sub_1-7.1.output.jsonl.zst"
