"""Gemini's adapter for the Developer API against the contract of all providers."""

import contextlib
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from batchor_core.errors import ProviderError
from batchor_core.ids import custom_id
from batchor_core.model.faults import FaultKind
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.gemini.adapter import GeminiProvider
from batchor_core.providers.gemini.requests import request_encoder
from batchor_core.providers.protocol import Answer, BatchPhase, BatchProvider, RequestEncoder
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

DIMENSIONS = 64
ROUTES = {
    "create": "gemini.batches.create",
    "list": "gemini.batches.list",
    "get": "gemini.batches.get",
    "download": "gemini.files.download",
}


class DeveloperContract(ProviderContract):
    """What both ways of handing requests over have in common."""

    routes = ROUTES
    create_path = ":batchGenerateContent"
    unknown_id = "batches/unknown"
    absent_results: ClassVar[Any] = ({}, {"responses_file": None}, {"responses_file": ""})
    keeps_expired_results = False
    fields: ClassVar[dict[str, Any]]

    def connect(self, base_url: str, key: str) -> GeminiProvider:
        return GeminiProvider(self.config(f"{base_url}/gemini", key))

    def encoder(self, host: str) -> RequestEncoder:
        config = self.config("http://127.0.0.1", "unused")
        return request_encoder(config, host=host, system_prompt=None, schema=None)

    def config(self, base_url: str, key: str) -> GeminiProviderConfig:
        fields = {"model": "gemini-test", "base_url": base_url, "timeout_s": 20, **self.fields}
        return GeminiProviderConfig(api_key=SecretStr(key), **fields)

    def test_a_rejected_batch(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch that the provider refuses would be waited for, or its rows be lost."""
        sim.faults(kind="fail_batch", code="INVALID_ARGUMENT", message="bad")
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        seen = provider.get(batch.batch_id)
        assert (seen.phase, seen.line_faults) == (BatchPhase.REJECTED, None)
        assert seen.fault is not None
        assert (seen.fault.kind, seen.fault.message) == (FaultKind.REJECTED, "bad")

    def test_a_batch_without_results_is_partial(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """The rows of a batch that expired would wait for results that never come."""
        sim.faults(kind="expire", match={"batch": 0})
        expired, cancelled = submit(provider, requests), submit(provider, requests)
        provider.cancel(cancelled.batch_id)
        sim.advance_time(BATCH_SECONDS)
        for batch, status in ((expired, "expired"), (cancelled, "cancelled")):
            ended = provider.get(batch.batch_id)
            assert (ended.phase, ended.status) == (BatchPhase.ENDED, status)
            assert ended.is_partial
            assert download(provider, ended, tmp_path / status) == []
        assert sim.ledger().executed() == 0

    def test_a_batch_that_succeeded_in_part(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Its answers, which are paid, would be waited for as long as the SDK waits: for ever."""
        sim.faults(kind="succeed_in_part", fraction=0.67)
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        assert (ended.phase, ended.status, ended.is_partial) == (
            BatchPhase.ENDED,
            "partially_succeeded",
            True,
        )
        assert len(read_answers(provider, ended, tmp_path)) == 2

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("RESOURCE_EXHAUSTED", FaultKind.CAPACITY),
            ("PERMISSION_DENIED", FaultKind.ACCOUNT),
            ("INTERNAL", FaultKind.TRANSIENT),
        ],
    )
    def test_why_a_batch_failed(
        self,
        sim: Simulator,
        provider: BatchProvider,
        requests: Path,
        code: str,
        kind: FaultKind,
    ) -> None:
        """The SDK drops the reason (facts 0.2): a full queue would look like a bad request."""
        sim.faults(kind="fail_batch", code=code)
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        fault = provider.get(batch.batch_id).fault
        assert fault is not None
        assert (fault.kind, fault.code) == (kind, code)

    def test_answers_out_of_order_and_under_wrong_keys(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Row 1 would get the answer to row 2 (python-genai#1909)."""
        sim.faults(kind="wrong_custom_id", custom_id="zzzzzzzz-1", match={"custom_id": "-1$"})
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        answers = read_answers(provider, provider.get(batch.batch_id), tmp_path)
        assert sorted(answers) == ["abcdefgh-0", "abcdefgh-2", "zzzzzzzz-1"]

    @pytest.mark.parametrize(
        "word", ["BATCH_STATE_RUNNING", "JOB_STATE_RUNNING", "RUNNING", "BATCH_STATE_NEW_WORD", ""]
    )
    def test_states_in_any_spelling(
        self, sim: Simulator, provider: BatchProvider, requests: Path, word: str
    ) -> None:
        """A state that the SDK does not know (python-genai#1297) would end the run."""
        batch = submit(provider, requests)
        sim.faults(kind="odd_status", words={"BATCH_STATE_PENDING": word})
        assert provider.get(batch.batch_id).phase is BatchPhase.WORKING

    def test_a_list_out_of_order_is_read_to_its_end(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch behind older ones would count as never created, and be paid again."""
        sim.faults(kind="list_oldest_first")
        upload = provider.upload(requests, key="run_b/0/sub_b")
        for _ in range(101):
            create(provider, requests, upload.ref, key="run_b/0/sub_b")
        sim.advance_time(3_600)
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref)
        matches = provider.find(self.wanted(upload)).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_a_list_that_repeats_itself_proves_nothing(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """The look would go on for ever, or count as one that saw everything."""
        upload = provider.upload(requests, key=KEY)
        create(provider, requests, upload.ref, key="run_b/0/sub_b")
        sim.faults(kind="repeat_cursor")
        with pytest.raises(ProviderError):
            list(provider.list_batches(since=None))

    def test_list_batches(self, sim: Simulator, provider: BatchProvider, requests: Path) -> None:
        """After a restore, batches that were paid for would not be adopted."""
        old = submit(provider, requests)
        sim.advance_time(3_600)
        young = submit(provider, requests)
        listed = list(provider.list_batches(since=None))
        assert [batch.batch_id for batch in listed] == [young.batch_id, old.batch_id]
        assert {batch.key for batch in listed} == {KEY}
        recent = list(provider.list_batches(since=young.created_at))
        assert [batch.batch_id for batch in recent] == [young.batch_id]


class TestFiles(DeveloperContract):
    fields: ClassVar[dict[str, Any]] = {"input_mode": "file"}

    def test_delete(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Our files would fill the account, or a file that cannot be deleted stop everything."""
        upload = provider.upload(requests, key=KEY)
        batch = create(provider, requests, upload.ref)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        for _ in range(2):
            provider.delete_remote(upload_ref=upload.ref, result=ended.result)
        assert sim.state.gemini.list_files({})["files"][0]["name"].startswith("files/batch-")
        assert len(sim.state.gemini.list_files({})["files"]) == 1
        assert len(read_answers(provider, ended, tmp_path)) == 3

    def test_uploading_twice_is_one_file(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """Every upload whose answer got lost would leave a file behind."""
        sim.faults(kind="drop_after_commit", times=1, match={"route": "gemini.files.upload"})
        with pytest.raises(ProviderError):
            provider.upload(requests, key=KEY)
        first = provider.upload(requests, key=KEY)
        again = provider.upload(requests, key=KEY)
        assert first.ref == again.ref
        assert again.server_time is not None
        assert len(sim.state.gemini.list_files({})["files"]) == 1

    def test_a_file_that_is_not_what_was_sent(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A request file that was cut short would be executed, and rows be missing."""
        upload = provider.upload(requests, key=KEY)
        requests.write_bytes(requests.read_bytes() * 2)
        with pytest.raises(ProviderError) as caught:
            provider.upload(requests, key=KEY)
        assert caught.value.fault.kind is FaultKind.TRANSIENT
        assert provider.upload(requests, key=KEY).ref == upload.ref
        (file,) = sim.state.gemini.list_files({})["files"]
        assert file["sizeBytes"] == str(requests.stat().st_size)

    def test_an_upload_tells_of_its_progress(self, provider: BatchProvider, tmp_path: Path) -> None:
        """A lease would run out during a long upload, or a lost one go unnoticed."""
        path = tmp_path / "long.jsonl"
        with path.open("wb") as file:
            file.truncate(20 << 20)
        calls: list[int] = []
        provider.upload(path, key=KEY, progress=lambda: calls.append(1))
        assert len(calls) >= 3

        def lost() -> None:
            raise KeyError("lease")

        with pytest.raises(KeyError, match="lease"):
            provider.upload(path, key="run_b/0/sub_b", progress=lost)

    @pytest.mark.parametrize("body", ["{}", "[]", '{"file": null}', "<html>"])
    def test_an_upload_that_is_answered_oddly(
        self, sim: Simulator, provider: BatchProvider, requests: Path, body: str
    ) -> None:
        """The SDK's KeyError would end the run."""
        sim.faults(
            kind="http_error",
            status=200,
            body=body,
            headers={"x-goog-upload-status": "final"},
            match={"route": "gemini.files.upload"},
        )
        with pytest.raises(ProviderError) as caught:
            provider.upload(requests, key=KEY)
        assert caught.value.fault.kind is FaultKind.TRANSIENT

    def test_the_request_file_is_found_without_a_name(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch whose name was lost would be paid twice, although it names our file."""
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref, key="another name")
        matches = provider.find(self.wanted(upload)).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_a_redirected_download_is_followed(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Results that lie elsewhere would count as lost."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        sim.faults(kind="redirect", status=302, match={"route": "gemini.files.download"})
        assert len(read_answers(provider, ended, tmp_path)) == 3


class TestFilesOfEmbeddings(TestFiles):
    create_path = ":asyncBatchEmbedContent"
    fields: ClassVar[dict[str, Any]] = {
        "input_mode": "file",
        "endpoint": "embeddings",
        "dimensions": DIMENSIONS,
        "model": "gemini-embedding-001",
    }

    def check_answer(self, answer: Answer) -> None:
        check_vector(answer)


class TestInline(DeveloperContract):
    fields: ClassVar[dict[str, Any]] = {"input_mode": "inline"}
    routes = ROUTES | {"download": "gemini.batches.get"}

    # The answers come in one JSON object: there is no stream that could be cut, or last long.
    test_a_download_reports_progress_and_is_bounded = None
    test_a_truncated_download_is_noticed = None
    test_a_truncation_that_cannot_be_noticed_breaks_one_line = None
    test_delete = None  # nor is there a file

    def test_a_response_without_a_key_is_left_out(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """An answer would be given to a row by its position (facts 0.11)."""
        sim.faults(kind="wrong_custom_id", custom_id="", match={"custom_id": "-1$"})
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        answers = read_answers(provider, provider.get(batch.batch_id), tmp_path)
        assert sorted(answers) == [custom_id(TOKEN, 0), custom_id(TOKEN, 2)]

    def test_a_listed_batch_names_no_results(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch would count as one without results: a list leaves out what a batch holds."""
        ids = [submit(provider, requests).batch_id for _ in range(4)]
        sim.advance_time(BATCH_SECONDS)
        listed = provider.get_many(ids)
        assert {batch.phase for batch in listed.values()} == {BatchPhase.ENDED}
        assert not any(batch.result or batch.is_partial for batch in listed.values())
        assert provider.get(ids[0]).result


class TestInlineEmbeddings(TestInline):
    create_path = ":asyncBatchEmbedContent"
    fields: ClassVar[dict[str, Any]] = {
        "input_mode": "inline",
        "endpoint": "embeddings",
        "dimensions": DIMENSIONS,
        "model": "gemini-embedding-001",
    }

    def check_answer(self, answer: Answer) -> None:
        check_vector(answer)


def check_vector(answer: Answer) -> None:
    """Hold an embedding against what the endpoint promises."""
    assert (answer.text, answer.fault, answer.output_tokens) == (None, None, 0)
    assert answer.input_tokens
    (vector,) = answer.vectors or []
    values = struct.unpack(f"<{DIMENSIONS}f", vector)
    assert math.isclose(math.hypot(*values), 1.0, rel_tol=1e-5)


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """Run a simulator whose time stands still."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    clock = SimulatorClock(monotonic=lambda: 0.0)
    with Simulator(SimulatorOptions(batch_seconds=BATCH_SECONDS), clock=clock) as simulator:
        yield simulator


def test_auto_mode_sends_small_batches_inline(sim: Simulator, tmp_path: Path) -> None:
    """A small batch would need three calls, or a large one be refused."""
    config = GeminiProviderConfig(
        model="gemini-test", base_url=sim.gemini_base_url, api_key=SecretStr("k-0123456789")
    )
    path = tmp_path / "requests.jsonl"
    with contextlib.closing(GeminiProvider(config)) as provider:
        path.write_bytes(b"x" * 4_000_000)
        assert provider.upload(path, key=KEY).ref is None
        path.write_bytes(b"x" * 4_000_001)
        assert provider.upload(path, key=KEY).ref is not None
        assert provider.limits.max_bytes == 190_000_000
    vectors = config.model_copy(update={"endpoint": "embeddings", "dimensions": 3_072})
    with contextlib.closing(GeminiProvider(vectors)) as provider:
        path.write_bytes(b"x")
        assert provider.upload(path, key="run_b/0/sub_b").ref is not None


@pytest.mark.parametrize("version", [None, "v1beta"])
def test_both_versions_of_the_api(sim: Simulator, tmp_path: Path, version: str | None) -> None:
    """Whoever needs what is only in the beta could not have it."""
    with CountingProxy(sim.base_url) as proxy:
        config = GeminiProviderConfig(
            model="gemini-test",
            base_url=f"{proxy.base_url}/gemini",
            api_key=SecretStr("k-0123456789"),
            api_version=version,
            input_mode="file",
        )
        with contextlib.closing(GeminiProvider(config)) as provider:
            path = tmp_path / "requests.jsonl"
            path.write_bytes(b'{"key":"a-0","request":{"contents":[{"parts":[{"text":"x"}]}]}}\n')
            batch = submit(provider, path)
            sim.advance_time(BATCH_SECONDS)
            assert list(read_answers(provider, provider.get(batch.batch_id), tmp_path)) == ["a-0"]
        end = f"/{version or 'v1'}/models/gemini-test:batchGenerateContent"
        assert proxy.count("POST", end) == 1
