"""Gemini's adapter for Vertex AI against the contract of all providers, over a stand-in for GCS."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google.auth.credentials import Credentials

from batchor_core import BatchItem, BatchJob, BatchRunner, Image, PromptParts
from batchor_core.errors import ProviderError
from batchor_core.ids import custom_id
from batchor_core.model.faults import FaultKind
from batchor_core.model.policies import ChunkPolicy
from batchor_core.planning import tokens
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.gemini.adapter import VertexProvider
from batchor_core.providers.gemini.requests import request_encoder
from batchor_core.providers.protocol import BatchPhase, BatchProvider, RequestEncoder
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from batchor_core.testing.http_counting import CountingProxy
from batchor_core.testing.provider_suite import (
    BATCH_SECONDS,
    KEY,
    TOKEN,
    ProviderContract,
    create,
    download,
    read_answers,
    submit,
)
from tests.artifacts.servers import ObjectStore, fake_gcs
from tests.core.test_every_provider import PNG
from tests.core.world import SharedClock, Verdict, check_conserved

pytestmark = [
    # gcsfs hands parts over as bytes, and aiohttp thinks that unwise.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]

JOBS = "projects/p/locations/l/batchPredictionJobs"


class Token(Credentials):  # type: ignore[misc]  # google-auth has no types
    """Credentials that hold for the length of a test."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def refresh(self, request: Any) -> None:
        """Fail: nothing here may need another token."""
        raise AssertionError("refreshed")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Google Cloud Storage, as fake-gcs-server plays it."""
    with fake_gcs() as one:
        yield one


class TestVertex(ProviderContract):
    routes: ClassVar[dict[str, str]] = {
        "create": "vertex.batches.create",
        "list": "vertex.batches.list",
        "get": "vertex.batches.get",
    }
    create_path = "/batchPredictionJobs"
    unknown_id = f"{JOBS}/1"
    absent_results: ClassVar[Any] = ({}, {"output_folder": None, "output_prefix": ""})
    has_keys = False
    keeps_expired_results = False  # it does, but names none of the requests that it left over

    # Answers come from Google Cloud Storage, where the simulator's faults of calls do not strike.
    test_a_truncated_download_is_noticed = None
    test_a_truncation_that_cannot_be_noticed_breaks_one_line = None
    test_a_web_page_is_no_result = None
    # One block is as much as this test allows.
    test_a_download_reports_progress_and_is_bounded = None

    @pytest.fixture(autouse=True)
    def _root(self, store: ObjectStore) -> None:
        self.store = store
        self.root = store.new_root().replace("%20", "")

    @pytest.fixture
    def sim(self, monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> Iterator[Simulator]:
        """Run a simulator that reads and writes the stand-in."""
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        clock = SimulatorClock(monotonic=lambda: 0.0)
        options = SimulatorOptions(batch_seconds=BATCH_SECONDS, gcs_endpoint=store.endpoint)
        with Simulator(options, clock=clock) as simulator:
            yield simulator

    def connect(self, base_url: str, key: str) -> VertexProvider:
        return VertexProvider(
            self.config(f"{base_url}/gemini", "p"),
            credentials=Token(key),
            storage_options={"endpoint_url": self.store.endpoint},
        )

    def encoder(self, host: str) -> RequestEncoder:
        config = self.config("http://127.0.0.1", "p")
        return request_encoder(config, host=host, system_prompt=None, schema=None)

    def config(self, base_url: str, project: str) -> GeminiProviderConfig:
        return GeminiProviderConfig(
            model="gemini-test",
            backend="vertex",
            base_url=base_url,
            project=project,
            location="europe-west4",
            gcs_uri=self.root,
            timeout_s=20,
        )

    def test_a_rejected_batch(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A job that failed would be waited for, or its rows be lost."""
        sim.faults(kind="fail_batch", code="RESOURCE_EXHAUSTED", message="too much")
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        seen = provider.get(batch.batch_id)
        assert seen.phase is BatchPhase.REJECTED
        assert seen.fault is not None
        assert (seen.fault.kind, seen.fault.message) == (FaultKind.CAPACITY, "too much")

    def test_a_failing_progress_stops_the_upload(
        self, provider: BatchProvider, requests: Path
    ) -> None:
        """A process that lost its lease would go on, and leave half a file behind."""

        def lost() -> None:
            raise KeyError("lease")

        with pytest.raises(KeyError, match="lease"):
            provider.upload(requests, key=KEY, progress=lost)
        assert self.files() == []

    def test_an_expired_job_keeps_what_it_answered(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """What was answered and paid before a job expired would be paid again."""
        sim.faults(kind="expire", fraction=0.67)
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        assert (ended.phase, ended.is_partial) == (BatchPhase.ENDED, True)
        assert len(read_answers(provider, ended, tmp_path)) == 2

    def test_a_cancelled_job_without_answers(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A job that was cancelled before it began would count as one whose results are lost."""
        batch = submit(provider, requests)
        provider.cancel(batch.batch_id)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        assert (ended.phase, ended.is_partial) == (BatchPhase.ENDED, True)
        assert download(provider, ended, tmp_path / "none") == []

    def test_a_job_that_does_not_say_where_its_answers_are(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Its answers would count as lost (python-genai#1527), although they are there."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        sim.faults(kind="null_fields", fields=["outputInfo"])
        ended = provider.get(batch.batch_id)
        assert ended.result is not None
        assert ended.result["output_folder"] is None
        assert len(read_answers(provider, ended, tmp_path)) == 3

    @pytest.mark.parametrize("kind", ["results_missing", "results_gone"])
    def test_answers_that_are_not_there(
        self,
        sim: Simulator,
        provider: BatchProvider,
        requests: Path,
        tmp_path: Path,
        kind: str,
    ) -> None:
        """Answers that are late would count as none, and every row be paid again."""
        sim.faults(kind=kind)
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        with pytest.raises(ProviderError) as caught:
            download(provider, ended, tmp_path / "none")
        assert caught.value.fault.kind is FaultKind.MISSING
        result = ended.result or {}
        assert provider.download_results(result, tmp_path, int, leave_out_missing=True) == []

    def test_a_download_tells_of_its_progress(
        self, sim: Simulator, provider: BatchProvider, tmp_path: Path
    ) -> None:
        """A lease would run out during a long download."""
        sim.faults(kind="huge_answer", megabytes=6)
        batch = submit(provider, self.request_file(provider, tmp_path, 3))
        sim.advance_time(BATCH_SECONDS)
        calls: list[int] = []
        download(provider, provider.get(batch.batch_id), tmp_path / "got", calls)
        assert len(calls) > 1

    def test_delete(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Our files would fill the bucket, or somebody else's be removed with them."""
        self.store.filesystem().pipe_file(f"{self.root}/theirs.jsonl", b"{}")
        upload = provider.upload(requests, key=KEY)
        batch = create(provider, requests, upload.ref)
        sim.advance_time(BATCH_SECONDS)
        result = provider.get(batch.batch_id).result
        assert len(self.files()) == 3
        for _ in range(2):
            provider.delete_remote(upload_ref=upload.ref, result=result)
        provider.delete_remote(upload_ref="gs://elsewhere/requests.jsonl", result=None)
        assert self.files() == [f"{self.root}/theirs.jsonl"]
        with pytest.raises(ProviderError) as caught:
            provider.download_results(result or {}, tmp_path, lambda: None)
        assert caught.value.fault.kind is FaultKind.MISSING

    def test_a_file_that_is_gone(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A job without its input would be waited for."""
        upload = provider.upload(requests, key=KEY)
        batch = create(provider, requests, upload.ref)
        provider.delete_remote(upload_ref=upload.ref, result=None)
        sim.advance_time(BATCH_SECONDS)
        assert provider.get(batch.batch_id).phase is BatchPhase.REJECTED

    def test_a_bucket_that_is_not_there(self, sim: Simulator, requests: Path) -> None:
        """A misspelt bucket would be tried for ever."""
        self.root = "gs://no-such-bucket-at-all/x"
        provider = self.connect(sim.base_url, "token-0123456789")
        with pytest.raises(ProviderError) as caught:
            provider.upload(requests, key=KEY)
        assert caught.value.fault.kind is FaultKind.MISSING
        provider.close()

    def test_a_long_name_is_shortened(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A run with a long id could not be sent, or its batch not be found again."""
        key = f"{'r' * 300}/0-{TOKEN}/sub_a"
        upload = provider.upload(requests, key=key)
        mine = create(provider, requests, upload.ref, key=key)
        assert len(mine.key or "") == 128
        other = create(provider, requests, "gs://b/other", key=key.replace("sub_a", "sub_b"))
        assert other.key != mine.key
        wanted = self.wanted(upload)
        sighting = provider.find(type(wanted)(**{**vars(wanted), "key": key}))
        assert [batch.batch_id for batch in sighting.matches] == [mine.batch_id]

    def test_found_by_file_when_the_name_is_lost(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch whose name was lost would be paid twice, although it names our file."""
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref, key="another name")
        matches = provider.find(self.wanted(upload)).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_a_look_by_name_is_one_call(
        self, proxy: CountingProxy, provider: BatchProvider, requests: Path
    ) -> None:
        """Each look would read all jobs of the project, although the server can filter."""
        upload = provider.upload(requests, key='run "a"\\/0/sub_a')
        create(provider, requests, upload.ref, key='run "a"\\/0/sub_a')
        wanted = self.wanted(upload)
        found = provider.find(type(wanted)(**{**vars(wanted), "key": 'run "a"\\/0/sub_a'}))
        assert len(found.matches) == 1
        filtered = [line for line in proxy._lines if b"filter=" in line]
        assert len(filtered) == 1

    def test_failed_lines_say_why(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A bad request would be sent again and again, or a passing failure be final."""
        sim.faults(kind="line_error", status=429, match={"custom_id": "-0$"})
        sim.faults(kind="line_error", status=400, message="no", match={"custom_id": "-1$"})
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        answers = read_answers(provider, provider.get(batch.batch_id), tmp_path)
        first, second = (answers[custom_id(TOKEN, row)].fault for row in range(2))
        assert first is not None
        assert second is not None
        assert (first.code, first.retryable) == ("RESOURCE_EXHAUSTED", True)
        assert (second.code, second.retryable) == ("INVALID_ARGUMENT", False)
        assert "no" in second.message

    def test_a_whole_run(
        self, sim: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing would work with Vertex AI but its calls one by one."""
        monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)
        sim.faults(kind="expire", fraction=0.5, times=1)
        sim.faults(kind="drop_after_commit", times=1, match={"route": "vertex.batches.create"})
        token = "ya29.run-0123456789"
        runner = BatchRunner(
            tmp_path / "state.sqlite3",
            tmp_path / "artifacts",
            clock=SharedClock(sim),
            connect=lambda _: self.connect(sim.base_url, token),
        )
        job = BatchJob(
            items=[BatchItem(item_id=f"i{n}", payload=f"say {n}") for n in range(10)],
            provider_config=self.config(sim.gemini_base_url, "p"),
            chunk_policy=ChunkPolicy(max_requests=4),
        )
        with runner:
            run = runner.run_and_wait(job, run_id="run-1")
            assert [result.status for result in run.results()] == ["ok"] * 10
        assert sim.ledger().executed() == 10
        assert sim.ledger().paid_twice() == []
        assert self.files() == []
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert token.encode() not in stored

    def test_the_job_that_every_provider_does(
        self, sim: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Typed answers, or pictures, would be for other providers only."""
        monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)
        rows = [BatchItem(item_id=f"item-{n}", payload=f"Prompt number {n};") for n in range(200)]
        rows[7] = BatchItem(item_id="item-7", payload=[Image(data=PNG), "Prompt number 7;"])
        runner = BatchRunner(
            tmp_path / "state.sqlite3",
            tmp_path / "artifacts",
            clock=SharedClock(sim),
            connect=lambda _: self.connect(sim.base_url, "token"),
        )
        job = BatchJob(
            items=rows,
            build_prompt=lambda item: PromptParts(prompt=item.payload),
            provider_config=self.config(sim.gemini_base_url, "p"),
            structured_output=Verdict,
            chunk_policy=ChunkPolicy(max_requests=80),
        )
        with runner:
            run = runner.run_and_wait(job, run_id="run-1")
            check_conserved(run, 200)
            labels = [result.output.label for result in run.results()]
            frame = run.results_frame().collect()
        assert [f"number {n};" in label for n, label in enumerate(labels)] == [True] * 200
        assert frame["batch_input_tokens"][7] > frame["batch_input_tokens"][8]
        assert sim.ledger().paid_twice() == []

    def files(self) -> list[str]:
        """Return the addresses of all files below the root."""
        found = self.store.filesystem().find(self.root)
        return sorted(f"gs://{path}" for path in found)
