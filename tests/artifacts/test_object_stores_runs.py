"""Whole batch runs whose files lie on an object store."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchor_core import BatchRunner, Run
from batchor_core.artifacts import ArtifactStore
from batchor_core.errors import RunPausedError
from batchor_core.model.policies import ChunkPolicy
from batchor_core.planning import tokens
from tests.artifacts.servers import ObjectStore, azurite, fake_gcs, moto
from tests.core.world import Verdict, World, check_conserved, check_paid_once, open_world

pytestmark = [
    pytest.mark.timeout(120),
    # azure-storage-blob hands parts over as bytes, and aiohttp thinks that unwise.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

COUNT = 20
SMALL_CHUNKS = ChunkPolicy(max_requests=7)
OF_OTHERS = {"batch_provider_batch_id", "batch_request_id"}
"""Columns whose values the provider makes anew in each run."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")  # where a later process finds the key
    monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)


@pytest.fixture(scope="module", params=[moto, fake_gcs, azurite], ids=["s3", "gcs", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """Each object store in turn."""
    with request.param() as one:
        yield one


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A provider and a control plane."""
    with open_world(tmp_path) as one:
        yield one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
    """A root on an object store, and runners that use it."""

    server: ObjectStore
    root: str
    new_runner: Callable[[], BatchRunner]

    @property
    def base(self) -> str:
        """The root's path in the object store's own file system."""
        return self.root.split("://")[1]

    def path(self, run: Run, kind: str) -> str:
        """The path of the first file of a kind, in the object store's own file system."""
        files = self.server.filesystem()
        found: list[str] = files.find(f"{self.base}/runs/{run.run_id}/{kind}")
        return min(found)


@pytest.fixture
def remote(server: ObjectStore, world: World) -> Iterator[Remote]:
    """A fresh root for the world's runs."""
    root = server.new_root()
    runners: list[BatchRunner] = []

    def new_runner() -> BatchRunner:
        runners.append(BatchRunner(world.db, server.open(root), clock=world.clock))
        return runners[-1]

    yield Remote(server=server, root=root, new_runner=new_runner)
    for runner in runners:
        runner.close()


def rows(run: Run) -> list[dict[str, Any]]:
    """The result table without what differs between any two runs."""
    return run.results_frame().drop(OF_OTHERS).collect().to_dicts()


def break_some(world: World) -> None:
    """Let one answer fail in the first round."""
    world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 3;"})


@pytest.mark.parametrize("output", [None, Verdict], ids=["text", "structured"])
def test_a_run_is_the_same_as_on_a_local_folder(
    world: World, remote: Remote, tmp_path: Path, output: type[Verdict] | None
) -> None:
    """Results would depend on where the files lie, or only their writer could read them."""
    options = {"structured_output": output, "chunk_policy": SMALL_CHUNKS}
    break_some(world)
    run = remote.new_runner().run_and_wait(world.job(COUNT, **options), run_id="run-1")
    assert run.status == "succeeded"
    assert run.results()[3].attempt_count == 2
    check_conserved(run, COUNT)
    check_paid_once(world)
    assert not world.artifacts.exists()

    world.sim.faults()
    break_some(world)
    with BatchRunner("memory", tmp_path / "local", clock=world.clock) as local:
        expected = local.run_and_wait(world.job(COUNT, **options), run_id="run-2")
        again = remote.new_runner().get_run("run-1")
        assert rows(again) == rows(expected)
        found = [dataclasses.replace(r, metadata={}) for r in again.results()]
        assert found == [dataclasses.replace(r, metadata={}) for r in expected.results()]


@pytest.mark.parametrize("is_altered", [False, True], ids=["lost", "altered"])
def test_a_file_lost_in_mid_run_pauses_until_it_is_restored(
    world: World, remote: Remote, *, is_altered: bool
) -> None:
    """A file removed from the bucket by mistake would cost the answers that were paid for."""
    run = remote.new_runner().start(world.job(COUNT, chunk_policy=SMALL_CHUNKS), run_id="run-1")
    files = remote.server.filesystem()
    lost = remote.path(run, "items")
    content = files.cat_file(lost)
    if is_altered:
        files.pipe_file(lost, content[:-1] + b"?")
    else:
        files.rm_file(lost)
    with pytest.raises(RunPausedError) as caught:
        run.wait()
    assert lost.removeprefix(f"{remote.base}/") in str(caught.value)
    assert repr(remote.root) in str(caught.value)

    files.pipe_file(lost, content)
    finished = remote.new_runner().get_run("run-1").resume().wait()
    assert finished.status == "succeeded"
    check_conserved(finished, COUNT)
    check_paid_once(world)


def test_nothing_secret_is_stored(world: World, remote: Remote) -> None:
    """Credentials of the object store would lie in the control plane, or in its own files."""
    remote.new_runner().run_and_wait(world.job(3), run_id="run-1")
    remote.new_runner().close()
    database = b"".join(p.read_bytes() for p in world.folder.glob("state.sqlite3*"))
    files = remote.server.filesystem()
    stored = b"".join(files.cat_file(name) for name in files.find(remote.base))
    for value in remote.server.options.values():
        if isinstance(value, str) and len(value) >= 8 and not value.startswith("http"):
            assert value.encode() not in database
            assert value.encode() not in stored


def test_an_object_store_that_is_down_is_tried_again(world: World) -> None:
    """Every run would have to be resumed by hand after each maintenance of the object store."""
    pytest.importorskip("s3fs")
    options: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    store = ArtifactStore("s3://bucket", **options)
    with BatchRunner(world.db, store, clock=world.clock) as runner:
        run = runner.open(world.job(3), run_id="run-1")
        progress = run.advance()
        assert run.control_state == "run"
        assert progress.next_due is not None
        assert progress.next_due > world.clock.now()
    assert world.run(3).status == "succeeded"
