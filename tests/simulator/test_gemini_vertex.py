"""The simulated Vertex AI, as Google's own SDK sees it, over a stand-in for its storage."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google import genai
from google.auth.credentials import Credentials
from google.genai import errors

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from tests.artifacts.servers import ObjectStore, fake_gcs

BATCH_SECONDS = 100.0
REQUEST = {"contents": [{"role": "user", "parts": [{"text": "one"}]}]}


class Token(Credentials):  # type: ignore[misc]  # google-auth has no types
    """Credentials that hold for the length of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "ya29.0123456789"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def refresh(self, request: Any) -> None:
        """Fail: nothing here may need another token."""
        raise AssertionError("refreshed")


class World:
    """A simulator whose time stands still, the SDK, and a bucket."""

    def __init__(self, sim: Simulator, store: ObjectStore | None) -> None:
        self.sim = sim
        self.store = store
        self.root = f"{store.new_root()}/run" if store else "gs://none"
        self.sdk = genai.Client(
            vertexai=True,
            credentials=Token(),
            project="p",
            location="europe-west4",
            http_options={"base_url": sim.gemini_base_url},
        )

    def put(self, *lines: Any) -> str:
        """Put a file of requests into the bucket."""
        assert self.store is not None
        source = f"{self.root}/requests.jsonl"
        content = "".join(json.dumps(line) + "\n" for line in lines)
        self.store.filesystem().pipe_file(source, content.encode())
        return source

    def create(self, source: str, name: str = "n") -> Any:
        """Create a job."""
        config = {"display_name": name, "dest": f"{self.root}/answers"}
        return self.sdk.batches.create(model="gemini-test", src=source, config=config)

    def ended(self, job: Any) -> Any:
        """Let a job end, and return it."""
        self.sim.advance_time(BATCH_SECONDS)
        return self.sdk.batches.get(name=job.name)

    def answers(self) -> list[dict[str, Any]]:
        """Return the lines of all files of answers."""
        assert self.store is not None
        bucket = self.store.filesystem()
        files = bucket.find(f"{self.root}/answers")
        return [json.loads(line) for file in files for line in bucket.cat_file(file).splitlines()]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Google Cloud Storage, as fake-gcs-server plays it."""
    with fake_gcs() as one:
        yield one


def _world(store: ObjectStore | None) -> Iterator[World]:
    options = SimulatorOptions(
        batch_seconds=BATCH_SECONDS, gcs_endpoint=store.endpoint if store else None
    )
    with Simulator(options, clock=SimulatorClock(monotonic=lambda: 0.0)) as sim:
        world = World(sim, store)
        yield world
        world.sdk.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> Iterator[World]:
    """Run a simulator over the stand-in."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield from _world(store)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Run a simulator without any storage."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield from _world(None)


def test_the_sdks_typed_way(world: World) -> None:
    """A user's own program, which knows nothing of us, could not be tested against it."""
    labelled = {**REQUEST, "labels": {"custom_id": "a-1", "team": "x"}}
    job = world.create(world.put({"request": labelled}))
    assert job.state.name == "JOB_STATE_PENDING"
    job = world.ended(job)
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    assert job.completion_stats.successful_count == 1
    (line,) = world.answers()
    assert line["status"] == ""
    assert line["request"] == labelled
    assert line["response"]["candidates"][0]["finishReason"] == "STOP"
    assert [each.name for each in world.sdk.batches.list()] == [job.name]


def test_labels_change_no_answer(world: World) -> None:
    """A request that is sent again under another id would not be known as the same one."""
    lines = [{"request": {**REQUEST, "labels": {"custom_id": f"aaaaaaaa-{i}"}}} for i in range(2)]
    world.ended(world.create(world.put(*lines), name="run/0-aaaaaaaa/sub/store_a"))
    first, second = world.answers()
    assert first["response"] == second["response"]


def test_a_bad_request_has_a_status(world: World) -> None:
    """A line that failed would look like one that did not."""
    job = world.ended(world.create(world.put({"request": {"prompt": "x"}})))
    assert job.completion_stats.failed_count == 1
    (line,) = world.answers()
    assert line["status"].startswith("Invalid Argument: 400")
    assert line["response"] == {}


def test_a_cancelled_job_keeps_what_it_answered(world: World) -> None:
    """A program would ask again for what it has paid."""
    job = world.create(world.put(*[{"request": REQUEST}] * 10))
    world.sim.advance_time(BATCH_SECONDS / 2)
    world.sdk.batches.cancel(name=job.name)
    assert world.sdk.batches.get(name=job.name).state.name == "JOB_STATE_CANCELLING"
    job = world.ended(job)
    assert job.state.name == "JOB_STATE_CANCELLED"
    assert 0 < len(world.answers()) == job.completion_stats.successful_count < 10
    assert world.sim.ledger().executed() == len(world.answers())
    with pytest.raises(errors.ClientError):
        world.sdk.batches.cancel(name=job.name)
    world.sdk.batches.delete(name=job.name)
    with pytest.raises(errors.ClientError):
        world.sdk.batches.get(name=job.name)


def test_jobs_by_name(world: World) -> None:
    """A program that filters would see the jobs of others."""
    source = world.put({"request": REQUEST})
    names = ["one", 'two "quoted" \\', "one"]
    ids = [world.create(source, name).name for name in names]
    found = world.sdk.batches.list(config={"filter": 'displayName="one"'})
    assert [job.name for job in found] == [ids[2], ids[0]]
    quoted = 'display_name="two \\"quoted\\" \\\\"'
    assert [job.name for job in world.sdk.batches.list(config={"filter": quoted})] == [ids[1]]
    with pytest.raises(errors.ClientError):
        world.sdk.batches.list(config={"filter": "state=JOB_STATE_PENDING"})
    paged = world.sdk.batches.list(config={"page_size": 1})
    assert [job.name for job in paged] == ids[::-1]


def test_a_file_that_is_not_there(world: World) -> None:
    """A misspelt address would look like an empty batch."""
    world.create(f"{world.root}/none.jsonl")
    world.sim.advance_time(BATCH_SECONDS)
    (job,) = world.sim.state.vertex.list_jobs({})["batchPredictionJobs"]
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_FAILED", 3)
    assert "none.jsonl" in job["error"]["message"]


def test_nothing_but_a_stand_in_is_ever_asked(bare: World) -> None:
    """A simulator would read and write somebody's real bucket."""
    job = bare.create("gs://somebodys-bucket/requests.jsonl")
    bare.sim.advance_time(BATCH_SECONDS)
    jobs = bare.sim.state.vertex.list_jobs({})["batchPredictionJobs"]
    assert [(each["name"], each["state"]) for each in jobs] == [(job.name, "JOB_STATE_FAILED")]
    assert "stand-in" in jobs[0]["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"displayName": "n" * 129},
        {"displayName": "n", "model": "publishers/google/models/m"},
    ],
)
def test_jobs_that_are_refused(bare: World, body: dict[str, Any]) -> None:
    """A job that Google refuses would be created."""
    with pytest.raises(errors.ClientError) as caught:
        bare.sdk._api_client.request("post", "batchPredictionJobs", body)
    assert caught.value.code == 400
