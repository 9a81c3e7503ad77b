"""The simulated Developer API, as Google's own SDK and plain HTTP see it."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import errors

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions

KEY = "key-0123456789"
BATCH_SECONDS = 100.0
DAY_S = 86_400


class World:
    """A simulator whose time stands still, with both kinds of client."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.sdk = genai.Client(api_key=KEY, http_options={"base_url": sim.gemini_base_url})
        self.http = httpx2.Client(
            base_url=f"{sim.gemini_base_url}/v1", headers={"x-goog-api-key": KEY}
        )

    def upload(self, lines: list[Any], folder: Path, **config: Any) -> Any:
        """Send a file of requests."""
        path = folder / "requests.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.sdk.files.upload(file=path, config={"mime_type": "jsonl", **config})

    def create(self, requests: list[Any], name: str = "n", **fields: Any) -> dict[str, Any]:
        """Create a batch of requests in the call."""
        entries = [
            {"request": each, "metadata": {"key": str(i)}} for i, each in enumerate(requests)
        ]
        batch = {"displayName": name, "inputConfig": {"requests": {"requests": entries}}, **fields}
        return self.post("/models/m:batchGenerateContent", {"batch": batch})

    def post(self, path: str, body: Any = None, status: int = 200) -> dict[str, Any]:
        """Make a call."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def get(self, path: str, status: int = 200) -> dict[str, Any]:
        """Make a call."""
        answer = self.http.get(path)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def ended(self, name: str) -> dict[str, Any]:
        """Let a batch end, and return it."""
        self.sim.advance_time(BATCH_SECONDS)
        return self.get(f"/{name}")

    def answers(self, requests: list[Any], **fields: Any) -> list[dict[str, Any]]:
        """Create a batch, let it end, and return what it holds."""
        ended = self.ended(self.create(requests, **fields)["name"])
        return list(ended["metadata"]["output"]["inlinedResponses"]["inlinedResponses"])


@contextlib.contextmanager
def open_world(**options: Any) -> Iterator[World]:
    """Run a simulator."""
    clock = SimulatorClock(monotonic=lambda: 0.0)
    given = {"batch_seconds": BATCH_SECONDS, **options}
    with Simulator(SimulatorOptions(**given), clock=clock) as sim:
        world = World(sim)
        try:
            yield world
        finally:
            world.http.close()
            world.sdk.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Run a simulator."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with open_world() as one:
        yield one


def ask(text: str, **config: Any) -> dict[str, Any]:
    """Return a request."""
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return {**body, "generationConfig": config} if config else body


def text_of(entry: dict[str, Any]) -> str:
    """Return an answer's text."""
    return str(entry["response"]["candidates"][0]["content"]["parts"][0]["text"])


def test_the_sdks_typed_way_over_a_file(world: World, tmp_path: Path) -> None:
    """A user's own program, which knows nothing of us, could not be tested against it."""
    file = world.upload([{"key": "a", "request": ask("one")}], tmp_path, display_name="d")
    assert (file.display_name, file.mime_type, file.size_bytes) == ("d", "jsonl", 86)
    assert file.expiration_time is not None
    job = world.sdk.batches.create(model="gemini-test", src=file.name, config={"display_name": "n"})
    assert (job.state.name, job.display_name) == ("JOB_STATE_PENDING", "n")
    world.sim.advance_time(BATCH_SECONDS / 2)
    assert world.sdk.batches.get(name=job.name).state.name == "JOB_STATE_RUNNING"
    world.sim.advance_time(BATCH_SECONDS)
    job = world.sdk.batches.get(name=job.name)
    assert job.done
    content = world.sdk.files.download(file=job.dest.file_name)
    line = json.loads(content)
    assert line["key"] == "a"
    assert "no model was involved" in text_of(line)
    assert [each.name for each in world.sdk.batches.list()] == [job.name]


@pytest.mark.filterwarnings("ignore:.*create_embeddings.*is experimental")
def test_the_sdks_typed_way_in_the_call(world: World) -> None:
    """As above, for small batches and embeddings."""
    source = [
        {"contents": [{"parts": [{"text": "one"}], "role": "user"}], "metadata": {"key": "k"}}
    ]
    job = world.sdk.batches.create(model="gemini-test", src=source)
    vectors = world.sdk.batches.create_embeddings(
        model="gemini-embedding-001",
        src={
            "inlined_requests": {
                "contents": [{"parts": [{"text": "one"}]}],
                "config": {"output_dimensionality": 8},
            }
        },
    )
    world.sim.advance_time(BATCH_SECONDS)
    (answer,) = world.sdk.batches.get(name=job.name).dest.inlined_responses
    assert answer.metadata == {"key": "k"}
    assert answer.response.text.startswith("Simulated")
    embedded = world.sdk.batches.get(name=vectors.name).dest.inlined_embed_content_responses
    values = embedded[0].response.embedding.values
    assert len(values) == 8
    assert math.isclose(math.hypot(*values), 1.0, rel_tol=1e-6)


def test_answers_are_the_same_in_every_run(world: World) -> None:
    """A user's test would fail at random."""
    first, again, other = (text_of(each) for each in world.answers([ask("x"), ask("x"), ask("y")]))
    assert first == again != other


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_snake_case_is_understood(world: World, version: str) -> None:
    """A client that writes protobuf's other spelling would be refused."""
    batch = {
        "display_name": "n",
        "input_config": {
            "requests": {
                "requests": [
                    {
                        "request": {
                            "contents": [{"parts": [{"text": "x"}]}],
                            "generation_config": {"max_output_tokens": 2},
                        },
                        "metadata": {"key": "k"},
                    }
                ]
            }
        },
    }
    url = f"{world.sim.gemini_base_url}/{version}/models/m:batchGenerateContent"
    created = world.http.post(url, json={"batch": batch}).json()
    world.sim.advance_time(BATCH_SECONDS)
    ended = world.http.get(f"{world.sim.gemini_base_url}/{version}/{created['name']}").json()
    (entry,) = ended["metadata"]["output"]["inlinedResponses"]["inlinedResponses"]
    candidate = entry["response"]["candidates"][0]
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert entry["response"]["usageMetadata"]["candidatesTokenCount"] == 2


def test_how_a_batch_looks(world: World) -> None:
    """A reader of raw JSON would meet the provider's spelling for the first time in earnest."""
    created = world.create([ask("x"), {"contents": [], "temperature": 1}])
    assert "done" not in created
    ended = world.ended(created["name"])
    metadata = ended["metadata"]
    assert ended["done"] is True
    assert metadata["state"] == "BATCH_STATE_SUCCEEDED"
    assert metadata["batchStats"] == {
        "requestCount": "2",
        "successfulRequestCount": "1",
        "failedRequestCount": "1",
    }
    assert len(metadata["createTime"]) == len("2026-01-02T03:04:05.123456789Z")
    assert metadata["createTime"] < metadata["endTime"]
    assert ended["response"]["inlinedResponses"] == metadata["output"]["inlinedResponses"]


def test_a_bad_request_is_an_error_with_details(world: World) -> None:
    """Parameters beside generationConfig would pass here, and fail at Google (facts 5: #53)."""
    bad = [{**ask("x"), "temperature": 1}, {"contents": []}, {"x": 1}]
    for entry in world.answers(bad):
        assert entry["error"]["code"] == 3
        assert isinstance(entry["error"]["details"][0], dict)


@pytest.mark.parametrize(
    ("schema", "check"),
    [
        (
            {
                "type": "OBJECT",
                "properties": {
                    "b": {"type": "INTEGER", "minimum": 3, "maximum": 5},
                    "a": {"type": "STRING", "enum": ["x", "y"]},
                    "list": {
                        "type": "ARRAY",
                        "items": {"type": "NUMBER"},
                        "minItems": "2",
                        "maxItems": "2",
                    },
                    "any": {"anyOf": [{"type": "BOOLEAN"}, {"type": "STRING", "nullable": True}]},
                    "none": {"type": "STRING", "nullable": True},
                },
                "required": ["a", "b", "list", "any", "none"],
                "propertyOrdering": ["a", "b"],
            },
            lambda value: (
                list(value)[:2] == ["a", "b"]
                and value["a"] in ("x", "y")
                and 3 <= value["b"] <= 5
                and len(value["list"]) == 2
                and isinstance(value["any"], (bool, str, type(None)))
                and isinstance(value["none"], (str, type(None)))
            ),
        ),
        (
            {
                "type": "object",
                "properties": {
                    "a": {"type": "array", "items": {"type": "integer"}, "min_items": 1}
                },
                "property_ordering": ["a"],
            },
            lambda value: all(isinstance(number, int) for number in value["a"]) and value["a"],
        ),
    ],
)
def test_answers_conform_to_a_response_schema(world: World, schema: Any, check: Any) -> None:
    """Structured output could not be tested without a key."""
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    for entry in world.answers([ask(f"row {number}", **config) for number in range(20)]):
        assert check(json.loads(text_of(entry)))


def test_answers_conform_to_a_json_schema(world: World) -> None:
    """As above, for the other dialect."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "integer"}},
    }
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    (entry,) = world.answers([ask("x", **config)])
    assert isinstance(json.loads(text_of(entry))["a"], int)
    refused = world.answers([ask("x", responseSchema=schema, responseMimeType="application/json")])
    assert refused[0]["error"]["code"] == 3
    assert world.answers([ask("x", responseJsonSchema=schema)])[0]["error"]["code"] == 3


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [({}, 403, None), ({"x-goog-api-key": "wrong"}, 400, "API_KEY_INVALID")],
)
def test_keys(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], status: int, reason: str | None
) -> None:
    """A program that sends no key would pass its tests."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with open_world(api_key=KEY) as world:
        url = f"{world.sim.gemini_base_url}/v1/batches"
        answer = httpx2.get(url, headers=headers)
        assert answer.status_code == status
        details = answer.json()["error"].get("details", [{}])
        assert details[0].get("reason") == reason
        assert world.get("/batches") == {}


def test_a_name_is_given_once(world: World, tmp_path: Path) -> None:
    """An upload that is repeated would leave two files, or replace the first."""
    lines = [{"key": "a", "request": ask("x")}]
    world.upload(lines, tmp_path, name="files/mine")
    with pytest.raises(errors.ClientError) as caught:
        world.upload(lines, tmp_path, name="files/mine")
    assert (caught.value.code, caught.value.status) == (409, "ALREADY_EXISTS")
    with pytest.raises(errors.ClientError):
        world.upload(lines, tmp_path, name="files/Not_An_Id")
    world.sdk.files.delete(name="files/mine")
    assert world.upload(lines, tmp_path, name="files/mine").name == "files/mine"


def test_uploads_in_pieces(world: World, tmp_path: Path) -> None:
    """A file of more than one piece would be put together wrongly."""
    text = "ä" * 9_000_000
    file = world.upload([{"key": "a", "request": ask(text)}], tmp_path)
    assert file.size_bytes == (tmp_path / "requests.jsonl").stat().st_size > 2 * 8_388_608
    stored = world.sim.state.gemini._files.get(file.name)
    assert stored.path.read_bytes() == (tmp_path / "requests.jsonl").read_bytes()


def test_pieces_that_do_not_fit(world: World) -> None:
    """A file with a hole in it would be executed."""
    base = f"{world.sim.gemini_base_url}/upload/v1/files"
    started = world.http.post(base, json={"file": {"mimeType": "jsonl"}})
    url = started.headers["x-goog-upload-url"]
    assert url.startswith("http://")
    command = {"x-goog-upload-command": "upload", "x-goog-upload-offset": "0"}
    assert world.http.post(url, content=b"abc", headers=command).status_code == 200
    assert world.http.post(url, content=b"abc", headers=command).status_code == 400
    assert world.http.post(url, content=b"abc").status_code == 400
    assert world.http.post(f"{base}/none", content=b"", headers=command).status_code == 404


def test_files_of_answers_have_long_names(world: World, tmp_path: Path) -> None:
    """Deleting them would work here, and fail at Google (python-genai#1759)."""
    file = world.upload([{"key": "a", "request": ask("x")}], tmp_path)
    job = world.sdk.batches.create(model="m", src=file.name)
    world.sim.advance_time(BATCH_SECONDS)
    name = world.sdk.batches.get(name=job.name).dest.file_name
    assert len(name.removeprefix("files/")) == 42
    for call in (world.sdk.files.get, world.sdk.files.delete):
        with pytest.raises(errors.ClientError, match="40 characters"):
            call(name=name)
    with pytest.raises(errors.ClientError, match="cannot be downloaded"):
        world.sdk.files.download(file=file.name)
    assert world.sdk.files.download(file=name)
    world.sim.advance_time(2 * DAY_S)
    with pytest.raises(errors.ClientError):
        world.sdk.files.download(file=name)


def test_a_file_that_is_deleted_while_batches_need_it(world: World, tmp_path: Path) -> None:
    """A batch that was created could not be executed."""
    file = world.upload([{"key": "a", "request": ask("x")}], tmp_path)
    jobs = [world.sdk.batches.create(model="m", src=file.name) for _ in range(2)]
    world.sdk.files.delete(name=file.name)
    for job in jobs:
        assert world.ended(job.name)["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"


def test_files_that_are_not_there(world: World) -> None:
    """A program would not meet Google's odd status for it before it is in earnest."""
    assert "may not exist" in world.get("/files/none", 403)["error"]["message"]
    body = {"batch": {"displayName": "n", "inputConfig": {"fileName": "files/none"}}}
    world.post("/models/m:batchGenerateContent", body, 403)


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"displayName": "n"},
        {"displayName": "n", "inputConfig": {"requests": {"requests": []}}},
        {"displayName": "n" * 513, "inputConfig": {"fileName": "files/a"}},
    ],
)
def test_batches_that_are_refused(world: World, batch: dict[str, Any]) -> None:
    """A batch that Google refuses would be created."""
    error = world.post("/models/m:batchGenerateContent", {"batch": batch}, 400)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_a_file_that_is_no_requests(world: World, tmp_path: Path) -> None:
    """One broken line would be skipped here, and fail the whole batch at Google."""
    file = world.upload([{"key": "a", "request": ask("x")}, "text"], tmp_path)
    job = world.sdk.batches.create(model="m", src=file.name)
    ended = world.ended(job.name)
    assert ended["metadata"]["state"] == "BATCH_STATE_FAILED"
    assert ended["error"]["code"] == 3
    assert world.sim.ledger().executed() == 0


def test_a_cancelled_batch_gives_nothing(world: World) -> None:
    """A program would count on answers that Google does not give."""
    created = world.create([ask("x")])
    world.sim.advance_time(BATCH_SECONDS / 2)
    assert world.post(f"/{created['name']}:cancel") == {}
    ended = world.get(f"/{created['name']}")
    assert ended["metadata"]["state"] == "BATCH_STATE_CANCELLED"
    assert "output" not in ended["metadata"]
    assert world.sim.ledger().executed() == 0
    refused = world.post(f"/{created['name']}:cancel", status=400)
    assert refused["error"]["status"] == "FAILED_PRECONDITION"


def test_a_batch_of_three_days_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program would count on answers that Google does not give."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with open_world(batch_seconds=3.0 * DAY_S) as world:
        created = world.create([ask("x")])
        world.sim.advance_time(2 * DAY_S - 1)
        assert world.get(f"/{created['name']}")["metadata"]["state"] == "BATCH_STATE_RUNNING"
        world.sim.advance_time(1)
        ended = world.get(f"/{created['name']}")
        assert ended["metadata"]["state"] == "BATCH_STATE_EXPIRED"
        assert "output" not in ended["metadata"]
        assert world.sim.ledger().faulted() == {"batch_expired": 1}


def test_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a program waits for room could not be tested."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with open_world(enqueued_token_limit=60) as world:
        world.create([ask("x" * 100)])
        with pytest.raises(AssertionError, match="RetryInfo") as caught:
            world.create([ask("x" * 100)])
        assert '"quotaValue":"60"' in str(caught.value)
        world.sim.advance_time(BATCH_SECONDS)
        world.create([ask("x" * 100)])


def test_lists_in_pages(world: World, tmp_path: Path) -> None:
    """A program that reads the first page only would pass its tests."""
    names = [world.create([ask("x")])["name"] for _ in range(3)]
    first = world.get("/batches?pageSize=2")
    assert [each["name"] for each in first["operations"]] == names[:0:-1]
    second = world.get(f"/batches?pageSize=2&pageToken={first['nextPageToken']}")
    assert [each["name"] for each in second["operations"]] == names[:1]
    assert "nextPageToken" not in second
    world.get("/batches?pageToken=none", 400)
    world.get("/batches?pageSize=many", 400)
    files = [world.upload([{"key": "a"}], tmp_path).name for _ in range(3)]
    assert [file.name for file in world.sdk.files.list(config={"page_size": 2})] == files[::-1]


def test_a_list_holds_no_answers(world: World) -> None:
    """A program would read its answers from the list, which has none at Google."""
    name = world.create([ask("x")])["name"]
    assert "output" in world.ended(name)["metadata"]
    (listed,) = world.get("/batches")["operations"]
    assert "output" not in listed["metadata"]
    assert "response" not in listed


def test_a_deleted_batch(world: World) -> None:
    """A batch that was deleted would still be listed."""
    name = world.create([ask("x")])["name"]
    assert world.http.delete(f"/{name}").status_code == 200
    assert world.get("/batches") == {}
    world.get(f"/{name}", 404)
    world.sim.advance_time(BATCH_SECONDS)
    assert world.get("/batches") == {}


def test_the_order_of_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that goes by position would pass its tests (python-genai#1909)."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    requests = [ask(f"row {number}") for number in range(20)]
    with open_world(shuffle_output=True) as world:
        held = [entry["metadata"]["key"] for entry in world.answers(requests)]
        lines = [{"key": str(i), "request": each} for i, each in enumerate(requests)]
        job = world.sdk.batches.create(model="m", src=world.upload(lines, tmp_path).name)
        ended = world.ended(job.name)
        content = world.sdk.files.download(file=ended["metadata"]["output"]["responsesFile"])
    in_file = [json.loads(line)["key"] for line in content.split(b"\n") if line]
    for keys in (held, in_file):
        assert keys != sorted(keys, key=int)
        assert sorted(keys, key=int) == [str(number) for number in range(20)]


def test_the_ledger_knows_runs_by_their_names(world: World) -> None:
    """Whether a run paid twice could not be seen."""
    for key in ("run-1/0-abcdefgh/sub_a/store_a", "run-1/0-zyxwvuts/sub_b/store_a"):
        world.create([ask("x")], name=key)
    world.create([ask("x")], name="another")
    world.sim.advance_time(BATCH_SECONDS)
    (twice,) = world.sim.ledger().paid_twice()
    assert (twice.run, twice.times) == ("run-1", 2)


@pytest.mark.parametrize(
    ("rule", "check"),
    [
        ({"kind": "refusal"}, lambda e: e["response"]["candidates"][0]["finishReason"] == "SAFETY"),
        ({"kind": "incomplete"}, lambda e: "MAX_TOKENS" in str(e)),
        ({"kind": "line_error", "status": 429}, lambda e: e["error"]["code"] == 8),
        ({"kind": "wrong_custom_id", "custom_id": "x"}, lambda e: e["metadata"]["key"] == "x"),
        ({"kind": "other_model", "model": "x"}, lambda e: e["response"]["modelVersion"] == "x"),
        ({"kind": "bad_line", "instead": True}, lambda e: e == {}),
        ({"kind": "line_status_zero"}, lambda e: "response" in e),
    ],
)
def test_faults_of_answers(world: World, rule: dict[str, Any], check: Any) -> None:
    """A fault could not be played here, or would crash the simulator."""
    world.sim.faults(rule)
    (entry,) = world.answers([ask("x")])
    assert check(entry)


def test_faults_of_batches(world: World) -> None:
    """As above, for what happens to a whole batch."""
    world.sim.faults(kind="results_missing", match={"batch": 0})
    world.sim.faults(kind="succeed_in_part", fraction=0.5, match={"batch": 1})
    world.sim.faults(kind="fail_batch", code="RESOURCE_EXHAUSTED", match={"batch": 2})
    world.sim.faults(kind="not_found_after_create", gets=1, match={"batch": 3})
    names = [world.create([ask("x"), ask("y")])["name"] for _ in range(4)]
    world.sim.advance_time(BATCH_SECONDS)
    missing, partial, failed = (world.get(f"/{name}") for name in names[:3])
    assert "output" not in missing["metadata"]
    assert partial["metadata"]["state"] == "BATCH_STATE_PARTIALLY_SUCCEEDED"
    assert len(partial["metadata"]["output"]["inlinedResponses"]["inlinedResponses"]) == 1
    assert failed["error"]["code"] == 8
    world.get(f"/{names[3]}", 404)
    world.get(f"/{names[3]}")


def test_faults_that_others_have_pass_by(world: World) -> None:
    """A set of rules for all providers would crash this one."""
    world.sim.faults({"kind": "empty_ids"}, {"kind": "lying_counts"}, {"kind": "odd_errors"})
    world.sim.faults(kind="odd_status", words={"BATCH_STATE_SUCCEEDED": "NEW"})
    world.sim.faults(kind="null_fields", fields=["response"])
    ended = world.ended(world.create([ask("x")])["name"])
    assert (ended["metadata"]["state"], ended["response"]) == ("NEW", None)
