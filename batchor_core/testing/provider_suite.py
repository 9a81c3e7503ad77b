"""The contract suite of ``BatchProvider``: over HTTP, with the real SDK, against the simulator.

Use it by subclassing ``ProviderContract`` as ``Test…`` with ``connect`` and ``encoder``, and
``KeylessContract`` where batches carry nothing of ours. The simulator's time stands still, so that
nothing here waits.
"""

import contextlib
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from batchor_core.errors import ProviderError
from batchor_core.ids import custom_id
from batchor_core.model.faults import FaultKind
from batchor_core.providers.protocol import (
    Answer,
    BatchPhase,
    BatchProvider,
    ProviderBatch,
    RawPart,
    RequestEncoder,
    Sighting,
    Upload,
    Wanted,
)
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from batchor_core.testing.http_counting import CountingProxy

BATCH_SECONDS = 100.0
KEY = "run_a/0/sub_a"
OTHER_KEY = "run_b/0/sub_b"
TOKEN = "abcdefgh"  # noqa: S105 - marks custom ids of one chunk
OTHER_TOKEN = "zyxwvuts"  # noqa: S105 - of another chunk
SECRET = "sk-contract-0123456789"  # noqa: S105 - the simulator takes any key

_HTML = {"kind": "http_error", "status": 200, "body": "<html>proxy</html>"}
_NULL = {"kind": "http_error", "status": 200, "body": "null", "media_type": "application/json"}
_UNKNOWN_OUTCOMES: dict[str, dict[str, Any]] = {
    "dropped after commit": {"kind": "drop_after_commit"},
    "dropped before commit": {"kind": "drop_before_commit"},
    "hangs": {"kind": "hang", "seconds": 20.0},
    "200 with HTML": _HTML,
    "200 with null": _NULL,
    **{str(s): {"kind": "http_error", "status": s} for s in (307, 408, 409, 500, 502, 503, 504)},
    "500 that names billing": {"kind": "http_error", "status": 500, "code": "insufficient_quota"},
}


class ProviderContract:
    """All of the contract; subclasses bring the adapter.

    Attributes:
        routes: What the simulator calls the calls that create, list, get and download.
        create_path: What the path of a create call ends in.
        unknown_id: Looks like a batch's id, and is none.
        absent_results: What ``download_results`` gets for a batch without result files; empty where
            every batch that has ended has some.
        has_keys: Whether one gets in with a key; else who asks plays no part.
        is_keyless: Whether a batch is known by its results only.
        rejects_batches: Whether a batch can be refused after it was created.
        keeps_expired_results: Whether a batch that expired has results.
        refusals: Which kind each definite refusal of a create has.
    """

    routes: ClassVar[Mapping[str, str]] = {
        "create": "batches.create",
        "list": "batches.list",
        "get": "batches.get",
        "download": "files.content",
    }
    create_path: ClassVar[str] = "/batches"
    unknown_id: ClassVar[str] = "batch_unknown"
    absent_results: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"output_file_id": None, "errors_file_id": None},
        {"output_file_id": "", "errors_file_id": ""},
    )
    has_keys: ClassVar[bool] = True
    is_keyless: ClassVar[bool] = False
    rejects_batches: ClassVar[bool] = True
    keeps_expired_results: ClassVar[bool] = True

    refusals: ClassVar[Mapping[int, FaultKind]] = {
        400: FaultKind.REJECTED,
        401: FaultKind.ACCOUNT,
        402: FaultKind.ACCOUNT,
        403: FaultKind.ACCOUNT,
        404: FaultKind.MISSING,
        413: FaultKind.SIZE,
        422: FaultKind.REJECTED,
        429: FaultKind.CAPACITY,
    }

    def connect(self, base_url: str, key: str) -> BatchProvider:
        """Return an adapter for the simulator behind ``base_url`` (without a path)."""
        raise NotImplementedError

    def encoder(self, host: str) -> RequestEncoder:
        """Return an encoder for any model, without an output schema."""
        raise NotImplementedError

    def check_answer(self, answer: Answer) -> None:
        """Hold an answer that nothing was done to against what the endpoint promises."""
        assert answer.text
        assert answer.fault is None
        assert answer.input_tokens
        assert answer.output_tokens

    @pytest.fixture
    def sim(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
        """Run a simulator whose time stands still."""
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        clock = SimulatorClock(monotonic=lambda: 0.0)
        with Simulator(SimulatorOptions(batch_seconds=BATCH_SECONDS), clock=clock) as simulator:
            yield simulator

    @pytest.fixture
    def proxy(self, sim: Simulator) -> Iterator[CountingProxy]:
        """Count the requests on their way to the simulator."""
        with CountingProxy(sim.base_url) as proxy:
            yield proxy

    @pytest.fixture
    def provider(self, proxy: CountingProxy) -> Iterator[BatchProvider]:
        """Connect an adapter, and close it."""
        with contextlib.closing(self.connect(proxy.base_url, SECRET)) as provider:
            yield provider

    @pytest.fixture
    def requests(self, provider: BatchProvider, tmp_path: Path) -> Path:
        """Write a request file of three lines."""
        return self.request_file(provider, tmp_path, 3)

    def request_file(
        self, provider: BatchProvider, folder: Path, count: int, token: str = TOKEN
    ) -> Path:
        """Write the request file of a chunk."""
        encoder = self.encoder(provider.host)
        path = folder / f"requests-{token}.jsonl"
        with path.open("wb") as file:
            for row in range(count):
                _, body = encoder.encode(f"say {row}")
                file.write(encoder.line(custom_id(token, row), body))
        return path

    def wanted(self, upload: Upload) -> Wanted:
        """Return the submission of ``requests``; without a key, its time narrows the look."""
        since = upload.server_time if self.is_keyless else None
        return replace(wanted(upload.ref), since=since)

    def found(self, sim: Simulator, provider: BatchProvider, upload: Upload) -> Sighting:
        """Look for the submission of ``requests``, once all that can be proven is."""
        if self.is_keyless:
            sim.advance_time(BATCH_SECONDS)
        return provider.find(self.wanted(upload))

    def test_from_upload_to_answers(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Nothing at all would work with this provider."""
        created = submit(provider, requests)
        assert created.phase is BatchPhase.WORKING
        assert provider.get(created.batch_id).batch_id == created.batch_id
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(created.batch_id)
        assert (ended.phase, ended.fault) == (BatchPhase.ENDED, None)
        answers = read_answers(provider, ended, tmp_path)
        assert sorted(answers) == [custom_id(TOKEN, row) for row in range(3)]
        for answer in answers.values():
            self.check_answer(answer)

    def test_failed_lines_are_answers_with_faults(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Failed rows would count as answered, or be lost."""
        sim.faults(kind="line_error", status=400, code="bad", match={"custom_id": "-0$"})
        sim.faults(kind="line_error", status=503, match={"custom_id": "-1$"})
        created = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        answers = read_answers(provider, provider.get(created.batch_id), tmp_path)
        faults = [answers[custom_id(TOKEN, row)].fault for row in range(3)]
        assert [fault and fault.retryable for fault in faults] == [False, True, None]

    @pytest.mark.parametrize("name", _UNKNOWN_OUTCOMES)
    def test_create_is_one_request_whose_outcome_is_unknown(
        self,
        sim: Simulator,
        proxy: CountingProxy,
        provider: BatchProvider,
        requests: Path,
        name: str,
    ) -> None:
        """A batch would be created twice and paid twice, or one that was created given up."""
        sim.faults({**_UNKNOWN_OUTCOMES[name], "match": {"route": self.routes["create"]}})
        upload = provider.upload(requests, key=KEY)
        before = proxy.count("POST", self.create_path)
        with pytest.raises(ProviderError) as caught:
            create(provider, requests, upload.ref, timeout_s=0.8 if name == "hangs" else 20.0)
        assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME
        assert proxy.count("POST", self.create_path) - before == 1
        found = self.found(sim, provider, upload).matches
        assert len(found) == (1 if name == "dropped after commit" else 0)

    @pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422, 429])
    def test_definite_refusals(
        self,
        sim: Simulator,
        proxy: CountingProxy,
        provider: BatchProvider,
        requests: Path,
        status: int,
    ) -> None:
        """A refused chunk would wait to be found, or the run would not pause, split or back off."""
        sim.faults(
            kind="http_error",
            status=status,
            type="x",
            headers={"retry-after": 7},
            match={"route": self.routes["create"]},
        )
        upload = provider.upload(requests, key=KEY)
        with pytest.raises(ProviderError) as caught:
            create(provider, requests, upload.ref)
        fault = caught.value.fault
        assert (fault.kind, fault.retry_after_s) == (self.refusals[status], 7.0)
        assert proxy.count("POST", self.create_path) == 1

    def test_an_upload_tells_the_providers_time(
        self, provider: BatchProvider, requests: Path
    ) -> None:
        """Nobody could tell how far back to look for a batch without trusting our own clock."""
        upload = provider.upload(requests, key=KEY)
        assert upload.server_time is not None
        assert provider.is_keyless is self.is_keyless

    def test_find_by_upload(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A batch whose create call was cut short would be created and paid again."""
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref)
        others = self.request_file(provider, tmp_path, 3, OTHER_TOKEN)
        other = provider.upload(others, key=OTHER_KEY)
        create(provider, others, other.ref, key=OTHER_KEY)
        sighting = self.found(sim, provider, upload)
        assert [batch.batch_id for batch in sighting.matches] == [mine.batch_id]
        assert sighting.server_time is not None

    def test_find_reports_twins(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch that exists twice would be paid twice, since nobody cancels the second."""
        upload = provider.upload(requests, key=KEY)
        twins = {create(provider, requests, upload.ref).batch_id for _ in range(2)}
        matches = self.found(sim, provider, upload).matches
        assert {batch.batch_id for batch in matches} == twins

    def test_find_after_the_list_caught_up(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A look that sees nothing yet would fail, and be taken for one that proves something."""
        sim.faults(kind="list_lag_seconds", seconds=30.0)
        upload = provider.upload(requests, key=KEY)
        create(provider, requests, upload.ref)
        seen = provider.find(self.wanted(upload))
        assert not seen.matches
        assert not seen.candidates
        sim.advance_time(31)
        assert len(self.found(sim, provider, upload).matches) == 1

    def test_find_on_later_pages(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A batch behind a hundred younger ones would be created and paid again."""
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref)
        others = self.request_file(provider, tmp_path, 3, OTHER_TOKEN)
        other = provider.upload(others, key=OTHER_KEY)
        for _ in range(101):
            create(provider, others, other.ref, key=OTHER_KEY)
        matches = self.found(sim, provider, upload).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_a_failed_look_raises(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """An outage, or a proxy's page, would be taken for proof that there is no batch."""
        upload = provider.upload(requests, key=KEY)
        for fault in ({"kind": "http_error", "status": 503}, _HTML, _NULL):
            sim.clear_faults()
            sim.faults({**fault, "match": {"route": self.routes["list"]}})
            with pytest.raises(ProviderError):
                provider.find(self.wanted(upload))

    def test_get_many(self, provider: BatchProvider, requests: Path) -> None:
        """Polling would mix batches up, or take one that is not listed for lost."""
        upload = provider.upload(requests, key=KEY)
        ids = [create(provider, requests, upload.ref).batch_id for _ in range(4)]
        seen = provider.get_many([*ids[:3], self.unknown_id])
        assert set(seen) <= set(ids[:3])
        assert all(batch_id == batch.batch_id for batch_id, batch in seen.items())
        assert provider.get_many([]) == {}

    def test_get_of_an_unknown_id(self, provider: BatchProvider) -> None:
        """A lost batch would be polled for ever."""
        with pytest.raises(ProviderError) as caught:
            provider.get(self.unknown_id)
        assert caught.value.fault.kind is FaultKind.MISSING

    @pytest.mark.parametrize(
        "fault",
        [_HTML, _NULL, {"kind": "http_error", "status": 502}, {"kind": "drop_before_commit"}],
        ids=["html", "null", "502", "dropped"],
    )
    def test_get_is_repeatable(
        self, sim: Simulator, provider: BatchProvider, requests: Path, fault: dict[str, Any]
    ) -> None:
        """An outage during polling would end a run."""
        batch = submit(provider, requests)
        sim.faults({**fault, "match": {"route": self.routes["get"]}, "times": 1})
        with pytest.raises(ProviderError) as caught:
            provider.get(batch.batch_id)
        assert caught.value.fault.kind is FaultKind.TRANSIENT
        assert provider.get(batch.batch_id).phase is BatchPhase.WORKING

    def test_a_rejected_batch(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch that the provider refuses would be waited for, or its healthy rows be lost."""
        if not self.rejects_batches:
            pytest.skip("this provider refuses no batch that it has created")
        sim.faults(kind="fail_batch", code="invalid_json_line", message="bad", line=2)
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        seen = provider.get(batch.batch_id)
        assert seen.phase is BatchPhase.REJECTED
        assert seen.fault is not None
        assert seen.fault.kind is FaultKind.REJECTED
        assert list(seen.line_faults or {}) == [2]

    def test_cancel(self, sim: Simulator, provider: BatchProvider, requests: Path) -> None:
        """A cancelled run would go on costing money, or cancelling twice would fail."""
        batch = submit(provider, requests)
        provider.cancel(batch.batch_id)
        provider.cancel(batch.batch_id)
        sim.advance_time(BATCH_SECONDS)
        assert provider.get(batch.batch_id).phase is BatchPhase.ENDED
        provider.cancel(batch.batch_id)

    def test_an_expired_batch_has_results(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """What was answered and paid before a batch expired would be lost, or paid again."""
        if not self.keeps_expired_results:
            pytest.skip("this provider gives no results of batches that expired")
        sim.faults(kind="expire", fraction=0.34)
        batch = submit(provider, requests)
        sim.advance_time(2 * 86_400)
        ended = provider.get(batch.batch_id)
        assert ended.phase is BatchPhase.ENDED
        faults = [a.fault for a in read_answers(provider, ended, tmp_path).values() if a.fault]
        assert faults
        assert all(fault.retryable and not fault.consumes_attempt for fault in faults)

    def test_a_download_reports_progress_and_is_bounded(
        self, sim: Simulator, provider: BatchProvider, tmp_path: Path
    ) -> None:
        """A lease would run out during a long download, or a large one fill the memory."""
        ended = self._long_answers(sim, provider, tmp_path)
        calls: list[int] = []
        tracemalloc.start()
        try:
            download(provider, ended, tmp_path / "warm")
            tracemalloc.reset_peak()
            start, _ = tracemalloc.get_traced_memory()
            parts = download(provider, ended, tmp_path / "got", calls)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        size = sum(part.path.stat().st_size for part in parts)
        assert size > 16_000_000
        assert len(calls) > 1
        # The simulator lives in this process; it sends pieces of 64 KB.
        assert peak - start < size // 2

    def test_a_failing_progress_stops_the_download(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A process that lost its lease would go on, and its reason would be covered up."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)

        def lost() -> None:
            raise KeyError("lease")

        with pytest.raises(KeyError, match="lease"):
            provider.download_results(ended.result or {}, tmp_path, lost)

    def test_a_truncated_download_is_noticed(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """The rows behind the break would count as missing and be paid again."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        sim.faults(kind="truncate_download", fraction=0.5, with_length=True, times=1)
        with pytest.raises(ProviderError) as caught:
            download(provider, ended, tmp_path / "cut")
        assert caught.value.fault.kind is FaultKind.TRANSIENT
        assert len(read_answers(provider, ended, tmp_path)) == 3

    def test_a_truncation_that_cannot_be_noticed_breaks_one_line(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A line that was cut in the middle would be taken for an answer, or stop everything."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        sim.faults(kind="truncate_download", fraction=0.5, with_length=False, times=1)
        assert len(read_answers(provider, ended, tmp_path)) < 3

    def test_a_web_page_is_no_result(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A proxy's page would be stored as results, and every row be paid again."""
        batch = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        ended = provider.get(batch.batch_id)
        sim.faults({**_HTML, "match": {"route": self.routes["download"]}, "times": 1})
        with pytest.raises(ProviderError) as caught:
            download(provider, ended, tmp_path / "cut")
        assert caught.value.fault.kind is FaultKind.TRANSIENT

    def test_no_result_files(self, provider: BatchProvider, tmp_path: Path) -> None:
        """A batch whose rows all failed would break its run with a file that is not there."""
        if not self.absent_results:
            pytest.skip("all batches of this provider that have ended have result files")
        for result in self.absent_results:
            assert provider.download_results(result, tmp_path, lambda: None) == []
            provider.delete_remote(upload_ref=None, result=result)
            provider.delete_remote(upload_ref="", result=result)

    def test_delete(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Our files would fill the account, or deleting twice would fail."""
        upload = provider.upload(requests, key=KEY)
        batch = create(provider, requests, upload.ref)
        sim.advance_time(BATCH_SECONDS)
        result = provider.get(batch.batch_id).result
        for _ in range(2):
            provider.delete_remote(upload_ref=upload.ref, result=result)
        with pytest.raises(ProviderError) as caught:
            provider.download_results(result or {}, tmp_path, lambda: None)
        assert caught.value.fault.kind is FaultKind.MISSING

    def test_decode_survives_garbage(self, provider: BatchProvider, tmp_path: Path) -> None:
        """One bad line would make all answers of a batch unreadable."""
        part = RawPart(kind="output", path=tmp_path)
        for line in (b"", b"\x00", b"\xff", b"null", b"[]", b'"x"', b"{}", b'{"custom_id":1}'):
            assert provider.decode(part, line) is None

    def test_the_account_is_stable_and_reveals_nothing(self, sim: Simulator) -> None:
        """Keys would be written to the store, or a run not find its own account again."""
        keys = (SECRET, SECRET, "sk-another-one-0123456")
        providers = [self.connect(sim.base_url, key) for key in keys]
        assert len({provider.account for provider in providers}) == 1  # it outlives its keys
        first, again, other = (provider.credential for provider in providers)
        assert first == again
        assert (other != first) is self.has_keys
        for provider in providers:
            shown = f"{provider.account} {provider.host} {provider!r} {provider.name}"
            shown += provider.credential
            assert not any(key in shown or key[3:12] in shown for key in keys)
            provider.close()

    def test_close_twice(self, sim: Simulator) -> None:
        """An adapter that is closed by two owners would crash the second."""
        provider = self.connect(sim.base_url, SECRET)
        provider.close()
        provider.close()

    def _long_answers(self, sim: Simulator, provider: BatchProvider, folder: Path) -> ProviderBatch:
        sim.faults(kind="duplicate_line", copies=10_000)
        batch = submit(provider, self.request_file(provider, folder, 5))
        sim.advance_time(BATCH_SECONDS)
        return provider.get(batch.batch_id)


class KeylessContract(ProviderContract):
    """What is more to prove where a batch carries nothing of ours but the custom ids inside."""

    is_keyless = True

    def test_a_batch_at_work_is_only_a_candidate(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """Somebody else's batch would be taken for ours, and its answers waited for as ours."""
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref)
        sighting = provider.find(self.wanted(upload))
        assert not sighting.matches
        assert [batch.batch_id for batch in sighting.candidates] == [mine.batch_id]
        sim.advance_time(BATCH_SECONDS)
        sighting = provider.find(self.wanted(upload))
        assert [batch.batch_id for batch in sighting.matches] == [mine.batch_id]
        assert not sighting.candidates

    def test_a_foreign_batch_of_the_same_time_and_size(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """Another program's batch would be adopted, and our rows never be sent."""
        upload = provider.upload(requests, key=KEY)
        foreign = self.request_file(provider, tmp_path, 3, OTHER_TOKEN)
        theirs = create(provider, foreign, upload.ref)
        sighting = provider.find(self.wanted(upload))
        assert [batch.batch_id for batch in sighting.candidates] == [theirs.batch_id]
        sim.advance_time(BATCH_SECONDS)
        sighting = provider.find(self.wanted(upload))
        assert not sighting.matches
        assert not sighting.candidates

    def test_what_came_later_is_no_candidate(self, provider: BatchProvider, requests: Path) -> None:
        """Every batch of the same size that anybody ever makes would be a suspect."""
        upload = provider.upload(requests, key=KEY)
        create(provider, requests, upload.ref)
        wanted = self.wanted(upload)
        assert upload.server_time is not None
        assert provider.find(
            replace(wanted, until=upload.server_time + timedelta(hours=1))
        ).candidates
        before = upload.server_time - timedelta(seconds=1)
        assert not provider.find(replace(wanted, until=before)).candidates

    def test_two_candidates_of_one_size(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """The wrong one of two batches would be adopted, and the right one never be collected."""
        upload = provider.upload(requests, key=KEY)
        foreign = self.request_file(provider, tmp_path, 3, OTHER_TOKEN)
        theirs = create(provider, foreign, upload.ref)
        sim.advance_time(1)
        mine = create(provider, requests, upload.ref)
        seen = [batch.batch_id for batch in provider.find(self.wanted(upload)).candidates]
        assert seen == [theirs.batch_id, mine.batch_id]
        sim.advance_time(BATCH_SECONDS - 1)  # theirs has ended, ours is at work
        sighting = provider.find(self.wanted(upload))
        assert not sighting.matches
        assert [batch.batch_id for batch in sighting.candidates] == [mine.batch_id]
        sim.advance_time(1)
        matches = provider.find(self.wanted(upload)).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_another_size_or_time_is_no_candidate(
        self, sim: Simulator, provider: BatchProvider, requests: Path, tmp_path: Path
    ) -> None:
        """A run would wait for batches that cannot be its own."""
        create(provider, requests, None)
        sim.advance_time(60)
        upload = provider.upload(requests, key=KEY)
        create(provider, self.request_file(provider, tmp_path, 4, OTHER_TOKEN), upload.ref)
        sighting = provider.find(self.wanted(upload))
        assert not sighting.matches
        assert not sighting.candidates

    def test_find_without_a_time(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """A batch whose create call has no known time would be created and paid again."""
        mine = submit(provider, requests)
        sim.advance_time(BATCH_SECONDS)
        matches = provider.find(wanted(None)).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]

    def test_results_that_cannot_be_read_prove_nothing(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """An outage while the results are looked at would be proof that the batch is not ours."""
        upload = provider.upload(requests, key=KEY)
        create(provider, requests, upload.ref)
        sim.advance_time(BATCH_SECONDS)
        for status in (404, 503):
            sim.clear_faults()
            route = {"route": self.routes["download"]}
            sim.faults(kind="http_error", status=status, match=route)
            with pytest.raises(ProviderError) as caught:
                provider.find(self.wanted(upload))
            assert caught.value.fault.kind is FaultKind.TRANSIENT

    def test_a_stray_line_does_not_hide_whose_results_they_are(
        self, sim: Simulator, provider: BatchProvider, requests: Path
    ) -> None:
        """One odd line in front would have all rows be sent and paid again."""
        sim.faults(kind="unknown_line")
        sim.faults(kind="bad_line", variant="blank")
        sim.faults(kind="bad_line", variant="invalid_utf8")
        upload = provider.upload(requests, key=KEY)
        mine = create(provider, requests, upload.ref)
        matches = self.found(sim, provider, upload).matches
        assert [batch.batch_id for batch in matches] == [mine.batch_id]


def wanted(upload_ref: str | None, key: str = KEY, request_count: int = 3) -> Wanted:
    """Return the submission of a request file."""
    return Wanted(key=key, upload_ref=upload_ref, chunk_token=TOKEN, request_count=request_count)


def create(
    provider: BatchProvider,
    path: Path,
    upload_ref: str | None,
    *,
    key: str = KEY,
    timeout_s: float = 20.0,
) -> ProviderBatch:
    """Create a batch over an uploaded file."""
    tags = {"batchor_run": "run_a"}
    return provider.create(
        upload_ref=upload_ref, path=path, key=key, tags=tags, timeout_s=timeout_s
    )


def submit(provider: BatchProvider, path: Path) -> ProviderBatch:
    """Upload a request file and create a batch over it."""
    return create(provider, path, provider.upload(path, key=KEY).ref)


def download(
    provider: BatchProvider, batch: ProviderBatch, folder: Path, calls: list[int] | None = None
) -> list[RawPart]:
    """Download an ended batch's results into a new folder; note each call of ``progress``."""
    folder.mkdir()
    noted = calls if calls is not None else []
    return provider.download_results(batch.result or {}, folder, lambda: noted.append(1))


def read_answers(provider: BatchProvider, batch: ProviderBatch, folder: Path) -> dict[str, Answer]:
    """Download and decode an ended batch's results: answers by custom id."""
    answers: dict[str, Answer] = {}
    for part in download(provider, batch, folder / "results"):
        for line in part.path.read_bytes().split(b"\n"):
            answer = provider.decode(part, line)
            if answer is not None:
                answers[answer.custom_id] = answer
    return answers
