"""The contract suite of ``ArtifactStore``: what every place for files has to pass.

Use it by subclassing ``ArtifactContract`` with a fixture ``opener`` that gives fresh stores on one
empty root, as different processes would have them.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256

import pytest

from batchor_core.artifacts import ArtifactStore, RunLayout
from batchor_core.errors import ArtifactAlteredError, ArtifactMissingError
from batchor_core.model.records import ArtifactRef

StoreOpener = Callable[[], ArtifactStore]
"""Opens a further store on the root under test."""

ODD_RUN_IDS = (
    "plain",
    "with space",
    "100%",
    "a%2Fb",
    "a/b\\c",
    "Grüße, 世界 🎉",
    "?query=1&b=2#part",
    "*[a-z]{x}",
    "..",
    ".hidden",
    "a+b",
    "x" * 300,
)
"""Run ids that some place, some library or some shell reads as something else."""

_BYTES_OF_A_PART = 1 << 20


def write(store: ArtifactStore, path: str, content: bytes = b"content") -> ArtifactRef:
    """Write a file whole."""
    with store.writer(path) as file:
        file.write(content)
        return file.commit()


def read(store: ArtifactStore, ref: ArtifactRef) -> bytes:
    """Read a file whole."""
    with store.local(ref) as path:
        return path.read_bytes()


class ArtifactContract:
    """All of the contract; subclasses bring the place."""

    @pytest.fixture
    def opener(self) -> StoreOpener:
        """Opens stores on one empty root."""
        raise NotImplementedError

    @pytest.fixture
    def open_store(self, opener: StoreOpener) -> Iterator[StoreOpener]:
        """Opens stores that are closed after the test."""
        opened: list[ArtifactStore] = []

        def open_one() -> ArtifactStore:
            opened.append(opener())
            return opened[-1]

        yield open_one
        for one in opened:
            one.close()

    @pytest.fixture
    def store(self, open_store: StoreOpener) -> ArtifactStore:
        """A store."""
        return open_store()

    @pytest.fixture
    def other(self, open_store: StoreOpener) -> ArtifactStore:
        """A store on the same root, as another process would have it."""
        return open_store()

    def test_another_process_reads_what_was_committed(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """Whoever goes on with a run would not find its files, or find other content."""
        with store.writer("runs/r/items/0.parquet") as file:
            assert file.write(b"one ") == 4
            file.write(memoryview(b"two"))
            ref = file.commit()
        expected = sha256(b"one two").hexdigest()
        assert (ref.path, ref.size_bytes, ref.sha256) == ("runs/r/items/0.parquet", 7, expected)
        assert read(other, ref) == b"one two"
        assert read(store, ref) == b"one two"

    def test_an_empty_file_is_a_file(self, store: ArtifactStore, other: ArtifactStore) -> None:
        """A provider's empty error file would count as lost."""
        assert read(other, write(store, "runs/r/raw/empty", b"")) == b""

    def test_a_file_of_many_parts_comes_back(self, store: ArtifactStore) -> None:
        """Files that are uploaded in several parts would be put together wrongly."""
        digest = sha256()
        with store.writer("runs/r/requests/large.jsonl") as file:
            for number in range(40):
                part = number.to_bytes(4, "big") * (_BYTES_OF_A_PART // 4)
                file.write(part)
                digest.update(part)
            ref = file.commit()
        assert (ref.size_bytes, ref.sha256) == (40 * _BYTES_OF_A_PART, digest.hexdigest())
        with store.local(ref) as path:
            assert path.stat().st_size == ref.size_bytes

    def test_nothing_is_there_before_the_commit(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """A reader would see half a file."""
        ref = ArtifactRef(path="runs/r/f", size_bytes=4, sha256=sha256(b"half").hexdigest())
        with store.writer(ref.path) as file:
            file.write(b"half")
            with pytest.raises(ArtifactMissingError):
                read(other, ref)
            file.commit()
        assert read(other, ref) == b"half"

    def test_a_discarded_file_leaves_nothing(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """A step that failed halfway would leave a file that looks whole."""
        ref = ArtifactRef(path="runs/r/f", size_bytes=4, sha256=sha256(b"half").hexdigest())

        def fail() -> None:
            with store.writer(ref.path) as file:
                file.write(b"half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        with pytest.raises(ArtifactMissingError):
            read(other, ref)

    def test_readers_see_all_or_nothing(self, store: ArtifactStore, other: ArtifactStore) -> None:
        """A reader that comes while a file is published would take half of it for altered."""
        content = b"x" * (4 * _BYTES_OF_A_PART)
        digest = sha256(content).hexdigest()
        refs = [
            ArtifactRef(path=f"runs/r/f{n}", size_bytes=len(content), sha256=digest)
            for n in range(4)
        ]
        written = threading.Event()

        def keep_reading() -> int:
            looks = 0
            while not written.is_set():
                for ref in refs:
                    looks += 1
                    with suppress(ArtifactMissingError):
                        assert read(other, ref) == content
            return looks

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(keep_reading)
            try:
                for ref in refs:
                    write(store, ref.path, content)
            finally:
                written.set()
            assert reader.result(60)

    def test_a_missing_file_is_named(self, store: ArtifactStore) -> None:
        """Nobody would know what to restore, and where."""
        ref = write(store, "runs/r/f")
        store.delete(ref.path)
        with pytest.raises(ArtifactMissingError) as caught:
            read(store, ref)
        assert repr(ref.path) in str(caught.value)
        assert repr(store.root) in str(caught.value)

    @pytest.mark.parametrize("content", [b"longer content", b"c0ntent", b""])
    def test_an_altered_file_is_refused(
        self, store: ArtifactStore, other: ArtifactStore, content: bytes
    ) -> None:
        """Answers would be joined with rows that they do not belong to."""
        ref = write(store, "runs/r/f", b"content")
        store.delete(ref.path)
        write(other, ref.path, content)
        with pytest.raises(ArtifactAlteredError, match="runs/r/f"):
            read(store, ref)

    def test_a_restored_file_is_found_again(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """A run whose files were restored from a backup could not go on in the same process."""
        ref = write(store, "runs/r/f")
        other.delete(ref.path)
        with pytest.raises(ArtifactMissingError):
            read(store, ref)
        write(other, ref.path)
        assert read(store, ref) == b"content"

    def test_deleting_twice_is_no_error(self, store: ArtifactStore, other: ArtifactStore) -> None:
        """Two processes that clean up the same run would fail each other."""
        ref = write(store, "runs/r/f")
        store.delete(ref.path)
        other.delete(ref.path)
        store.delete(ref.path)
        store.delete("runs/never/was")

    def test_a_folder_goes_with_what_others_put_there(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """Files that another process wrote meanwhile would stay, and be paid for, for ever."""
        refs = [write(store, f"runs/r/{kind}/{n}") for kind in ("items", "raw") for n in range(3)]
        store.delete_folder("runs/r/raw")
        refs += [write(other, f"runs/r/raw/{n}") for n in range(3, 6)]
        assert (other.has_folder("runs/r"), other.has_folder("runs/no")) == (True, False)
        store.delete_folder("runs/r")
        assert not other.has_folder("runs/r")
        store.delete_folder("runs/r")
        for ref in refs:
            with pytest.raises(ArtifactMissingError):
                read(other, ref)

    def test_a_folder_does_not_take_its_namesakes_along(self, store: ArtifactStore) -> None:
        """Removing one run would remove the files of all whose id begins with its id."""
        kept = [write(store, f"runs/{name}/f") for name in ("ab", "a.", "a-b", "b")]
        write(store, "runs/a/f")
        store.delete_folder("runs/a")
        assert [read(store, ref) for ref in kept] == [b"content"] * 4

    @pytest.mark.parametrize("run_id", ODD_RUN_IDS, ids=range(len(ODD_RUN_IDS)))
    def test_odd_run_ids_survive_the_way(
        self, store: ArtifactStore, other: ArtifactStore, run_id: str
    ) -> None:
        """A run's files would be lost, or fall upon those of another run, because of its id."""
        layout, plain = RunLayout(run_id=run_id), write(store, "runs/untouched/f")
        ref = write(store, layout.items(0, 1))
        assert read(other, ref) == b"content"
        other.delete_folder(layout.folder)
        with pytest.raises(ArtifactMissingError):
            read(store, ref)
        assert read(other, plain) == b"content"

    def test_odd_run_ids_do_not_share_files(self, store: ArtifactStore) -> None:
        """Two runs would overwrite each other's files."""
        refs = [write(store, RunLayout(run_id=r).items(0, 1), r.encode()) for r in ODD_RUN_IDS]
        assert [read(store, ref).decode() for ref in refs] == list(ODD_RUN_IDS)

    def test_a_stale_writer_does_not_disturb(
        self, store: ArtifactStore, other: ArtifactStore
    ) -> None:
        """A process that lost its lease would change a file that others rely on."""
        layout = RunLayout(run_id="r")
        with other.writer(layout.requests(3, token=1)) as stale:
            stale.write(b"stale")
            ref = write(store, layout.requests(3, token=2), b"fresh")
            stale_ref = stale.commit()
        assert read(other, ref) == b"fresh"
        other.delete(stale_ref.path)
        assert read(store, ref) == b"fresh"

    def test_threads_share_a_store(self, store: ArtifactStore) -> None:
        """Sensors that collect several runs at once would mix up or lose their files."""

        def work(number: int) -> bool:
            content = str(number).encode() * 1000
            ref = write(store, f"runs/r{number % 3}/f{number}", content)
            found = read(store, ref) == content
            store.delete(ref.path)
            return found

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(64)))

    def test_the_spool_is_private_and_goes(self, store: ArtifactStore) -> None:
        """Prompts and answers would be left readable on the machine of the worker."""
        with store.spool() as folder:
            (folder / "answers").write_bytes(b"x")
            assert folder.stat().st_mode & 0o077 == 0
        assert not folder.exists()

    def test_a_closed_store_can_be_closed_again(self, store: ArtifactStore) -> None:
        """A store that is closed by two owners would crash the second."""
        ref = write(store, "runs/r/f")
        store.close()
        store.close()
        assert read(store, ref) == b"content"
