"""The hostile shapes of field reports, each seen through the SDK or, where it hides them, raw."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from batchor_core.simulator import FaultError
from tests.simulator.conftest import BATCH_SECONDS

CONTENT = {"route": "files.content"}
DAY_S = 86_400


def _record(world: Any, batch: Any) -> dict[str, Any]:
    """A batch as the wire shows it: the SDK leaves out what it does not know."""
    answer = world.client.batches.with_raw_response.retrieve(batch.id)
    return json.loads(answer.http_response.content)


def _finished(world: Any, batch: Any) -> dict[str, Any]:
    world.sim.advance_time(BATCH_SECONDS)
    return _record(world, batch)


def _one_line(world: Any, **options: Any) -> bytes:
    """The only line of the output file of a batch of one request."""
    done = world.finish(world.submit("a", **options))
    return world.raw(done.output_file_id or done.error_file_id).removesuffix(b"\n")


class TestRecords:
    def test_empty_ids(self, world: Any) -> None:
        """Broken if the empty strings of Azure and OpenAI for "no file" could not be sent."""
        world.sim.faults(kind="empty_ids")
        batch = world.submit("a")
        assert (batch.output_file_id, batch.error_file_id) == ("", "")
        done = _finished(world, batch)
        assert done["output_file_id"].startswith("file-")
        assert done["error_file_id"] == ""

    def test_stray_ids(self, world: Any) -> None:
        """Broken if an ended batch could not name a file that does not exist."""
        world.sim.faults(kind="stray_ids", fields=["error_file_id"])
        batch = world.submit("a")
        assert batch.error_file_id is None
        assert _finished(world, batch)["error_file_id"] == "file-stray"
        with pytest.raises(openai.NotFoundError):
            world.raw("file-stray")

    def test_null_fields(self, world: Any) -> None:
        """Broken if Azure's nulls, whole or inside of the counts, could not be sent."""
        world.sim.faults(kind="null_fields", times=1)
        world.sim.faults(kind="null_fields", fields=["request_counts.completed"], skip=1)
        batch = world.submit("a")
        assert (batch.request_counts, batch.metadata, batch.endpoint) == (None, None, None)
        counts = _record(world, batch)["request_counts"]
        assert counts == {"total": 0, "completed": None, "failed": 0}

    def test_odd_status(self, world: Any) -> None:
        """Broken if the status words of other hosts could not be sent."""
        world.sim.faults(kind="odd_status", words={"completed": "succeeded"}, upper=True)
        batch = world.submit("a")
        assert batch.status == "VALIDATING"
        assert _finished(world, batch)["status"] == "SUCCEEDED"

    @pytest.mark.parametrize(
        ("shape", "errors"),
        [
            ("text", "m"),
            ("list", [{"code": "c", "line": 1, "message": "m", "param": None}]),
            ("texts", ["m"]),
            ("null", None),
            ("null_data", {"object": "list", "data": None}),
            ("empty", []),
        ],
    )
    def test_odd_errors(self, world: Any, shape: str, errors: Any) -> None:
        """Broken if the errors of a failed batch could not have every shape that hosts send."""
        world.sim.faults({"kind": "fail_batch", "code": "c", "message": "m", "line": 1})
        world.sim.faults(kind="odd_errors", shape=shape)
        assert _finished(world, world.submit("a"))["errors"] == errors

    def test_lying_counts(self, world: Any) -> None:
        """Broken if counts could not say that all is well when nothing is (ellmer#830)."""
        world.sim.faults({"kind": "line_status_zero"}, {"kind": "lying_counts"})
        done = _finished(world, world.submit("a", "b"))
        assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        world.sim.faults(kind="lying_counts", counts={"total": "7"})
        assert _finished(world, world.submit("a"))["request_counts"]["total"] == "7"

    def test_one_call_can_be_told_from_another(self, world: Any) -> None:
        """Broken if list and retrieve could not disagree on a batch."""
        world.sim.faults(
            kind="odd_status", words={"validating": "weird"}, match={"route": "batches.list"}
        )
        batch = world.submit("a")
        assert batch.status == "validating"
        assert world.client.batches.list().data[0].status == "weird"


class TestLists:
    def test_oldest_first(self, world: Any) -> None:
        """Broken if a host that lists in the other order could not be played."""
        world.sim.faults(kind="list_oldest_first")
        ids = [world.submit("a", token=f"aaaaaaa{n}").id for n in range(3)]
        assert [batch.id for batch in world.client.batches.list(limit=2)] == ids

    def test_repeated_cursor(self, world: Any) -> None:
        """Broken if the endless list that the SDK follows for ever could not be sent."""
        world.sim.faults(kind="repeat_cursor")
        world.submit("a")
        first = world.client.batches.list()
        again = world.client.batches.list(after=first.last_id)
        assert (first.has_more, again.has_more) == (True, True)
        assert first.last_id == again.last_id

    def test_never_listed(self, world: Any) -> None:
        """Broken if a batch could not exist without ever being listed."""
        world.sim.faults(kind="never_listed", match={"batch": 0})
        hidden, shown = world.submit("a"), world.submit("a", token="bbbbbbbb")
        world.sim.advance_time(DAY_S)
        assert [batch.id for batch in world.client.batches.list()] == [shown.id]
        assert world.client.batches.retrieve(hidden.id).status == "completed"


class TestBatches:
    def test_finalizing_hold(self, world: Any) -> None:
        """Broken if a batch could not stay `finalizing` with all its requests done."""
        world.sim.faults(kind="finalizing_hold", seconds=500.0)
        batch = world.submit("a")
        held = _finished(world, batch)
        assert (held["status"], held["request_counts"]["completed"]) == ("finalizing", 1)
        world.sim.advance_time(500)
        assert _record(world, batch)["status"] == "completed"

    def test_quota_released_late(self, worlds: Any) -> None:
        """Broken if tokens could not count as enqueued after their batch has ended."""
        world = worlds(enqueued_token_limit=20)
        world.sim.faults(kind="quota_held_seconds", seconds=3600.0, match={"batch": 0})
        assert world.finish(world.submit("a" * 20)).status == "completed"
        refused = world.finish(world.submit("a" * 20, token="bbbbbbbb"))
        assert (refused.status, refused.errors.data[0].code) == ("failed", "token_limit_exceeded")
        world.sim.advance_time(3600)
        assert world.finish(world.submit("a" * 20, token="cccccccc")).status == "completed"

    def test_results_missing(self, world: Any) -> None:
        """Broken if a completed batch could not come without any file."""
        world.sim.faults(kind="results_missing")
        done = world.finish(world.submit("a", "b"))
        assert (done.status, done.output_file_id, done.error_file_id) == ("completed", None, None)
        assert world.sim.ledger().defective() == {"results_missing": 2}

    def test_results_gone(self, world: Any) -> None:
        """Broken if the files that a batch names could not have been removed."""
        world.sim.faults(kind="results_gone")
        world.sim.faults(kind="line_error", match={"prompt": "b"})
        done = world.finish(world.submit("a", "b"))
        for file_id in (done.output_file_id, done.error_file_id):
            with pytest.raises(openai.NotFoundError):
                world.raw(file_id)
        assert world.sim.ledger().defective() == {"results_gone": 1}

    def test_results_end_after_their_retention(self, world: Any) -> None:
        """Broken if result files stayed for ever."""
        done = world.finish(world.submit("a"))
        world.sim.advance_time(31 * DAY_S)
        with pytest.raises(openai.NotFoundError):
            world.raw(done.output_file_id)

    def test_results_not_ready(self, world: Any) -> None:
        """Broken if a file could not be unknown for a while after the batch has named it."""
        world.sim.faults(kind="results_not_ready", gets=2)
        done = world.finish(world.submit("a"))
        for _ in range(2):
            with pytest.raises(openai.NotFoundError):
                world.raw(done.output_file_id)
        assert len(world.lines(done.output_file_id)) == 1

    def test_empty_files(self, world: Any) -> None:
        """Broken if a batch without errors could not have an error file of 0 bytes."""
        world.sim.faults(kind="empty_files")
        done = world.finish(world.submit("a"))
        assert world.raw(done.error_file_id) == b""
        assert len(world.lines(done.output_file_id)) == 1

    def test_only_an_error_file(self, world: Any) -> None:
        """Broken if a batch whose requests all failed had an output file."""
        world.sim.faults(kind="line_error", status=400)
        done = world.finish(world.submit("a", "b"))
        assert (done.status, done.output_file_id) == ("completed", None)
        assert len(world.lines(done.error_file_id)) == 2


class TestLineShapes:
    def test_body_as_text(self, world: Any) -> None:
        """Broken if a body could not be a JSON text, as OGX sends it."""
        world.sim.faults(kind="body_as_text")
        (line,) = world.answers("a")
        assert json.loads(line["response"]["body"])["status"] == "completed"

    @pytest.mark.parametrize(
        ("shape", "usage"), [("absent", "absent"), ("null", None), ("text", "none"), ("list", [1])]
    )
    def test_odd_usage(self, world: Any, shape: str, usage: Any) -> None:
        """Broken if an answer could not come without usable token counts."""
        world.sim.faults(kind="odd_usage", shape=shape)
        (body,) = world.bodies("a")
        assert body.get("usage", "absent") == usage

    def test_other_model(self, world: Any) -> None:
        """Broken if an answer could not name another model than the request."""
        world.sim.faults(kind="other_model", model="gpt-dated")
        (body,) = world.bodies("a")
        assert body["model"] == "gpt-dated"

    def test_wrong_file(self, world: Any) -> None:
        """Broken if a failed line could not lie among the answers, and the reverse."""
        world.sim.faults(kind="wrong_file")
        world.sim.faults(kind="line_error", match={"prompt": "b"})
        done = world.finish(world.submit("a", "b"))
        (failed,) = world.lines(done.output_file_id)
        (fine,) = world.lines(done.error_file_id)
        assert (failed["response"]["status_code"], fine["response"]["status_code"]) == (500, 200)

    def test_wrong_custom_id(self, world: Any) -> None:
        """Broken if an answer could not come under no id, or under another row's."""
        world.sim.faults(kind="wrong_custom_id", match={"prompt": "a"})
        world.sim.faults(kind="wrong_custom_id", custom_id="aaaaaaaa-0", match={"prompt": "b"})
        assert [line["custom_id"] for line in world.answers("a", "b")] == [None, "aaaaaaaa-0"]

    def test_foreign_line(self, world: Any) -> None:
        """Broken if sound lines of another batch could not be mixed in."""
        world.sim.faults(kind="foreign_line", token="bbbbbbbb")
        mine, foreign = world.answers("a")
        assert (mine["custom_id"], foreign["custom_id"]) == ("aaaaaaaa-0", "bbbbbbbb-0")
        assert mine["response"] == foreign["response"]
        assert world.sim.ledger().executed() == 1

    @pytest.mark.parametrize("absent", [False, True])
    def test_line_without_response(self, world: Any, absent: bool) -> None:
        """Broken if the error lines of vLLM and OGX could not be written."""
        world.sim.faults(kind="line_without_response", code="c", absent=absent)
        line = json.loads(_one_line(world))
        assert line["error"] == {"code": "c", "message": "Simulated failure."}
        assert ("response" in line) is not absent

    def test_failed_body(self, world: Any) -> None:
        """Broken if a failure could not hide under HTTP 200."""
        world.sim.faults(kind="failed_body", code="rate_limit_exceeded")
        (body,) = world.bodies("a")
        assert (body["status"], body["error"]["code"]) == ("failed", "rate_limit_exceeded")

    @pytest.mark.parametrize(
        ("variant", "found"),
        [
            ("nul", b"Simu\\u0000lated"),
            ("surrogate", b"Simu\\ud800lated"),
            ("nan", b'"logprobs":NaN'),
            ("invalid_utf8", b"Simu\xfflated"),
            ("too_deep", b"[" * 100_000),
            ("big_count", b'"input_tokens":1' + b"0" * 400),
        ],
    )
    def test_odd_text(self, world: Any, variant: str, found: bytes) -> None:
        """Broken if bytes that careless readers stumble over did not reach the client."""
        world.sim.faults(kind="odd_text", variant=variant)
        assert found in _one_line(world)

    @pytest.mark.parametrize(("kind", "lines"), [("huge_answer", 1), ("huge_line", 2)])
    def test_huge_lines(self, world: Any, kind: str, lines: int) -> None:
        """Broken if a line of many megabytes could not be sent."""
        world.sim.faults(kind=kind, megabytes=2)
        raw = world.raw(world.finish(world.submit("a")).output_file_id)
        assert raw.count(b"\n") == lines
        assert len(raw) > 2_000_000


class TestDownloads:
    @pytest.mark.parametrize(
        ("variant", "seen"),
        [
            ("bom", b"\xef\xbb\xbfa\nb\n"),
            ("crlf", b"a\r\nb\r\n"),
            ("blank_lines", b"\na\n \r\n\nb\n \r\n\n"),
            ("no_last_newline", b"a\nb"),
            ("nul_tail", b"a\nb\n" + bytes(1000)),
            ("utf16", b"\xff\xfea\0\n\0b\0\n\0"),
            ("page", b"<html><body>Something went wrong.</body></html>"),
            ("empty", b""),
        ],
    )
    def test_rewritten(self, world: Any, variant: str, seen: bytes) -> None:
        """Broken if a file could not arrive in other bytes than it was written in."""
        file_id = world.upload(b"a\nb\n")
        world.sim.faults(kind="rewrite_download", variant=variant, times=1)
        assert world.raw(file_id) == seen
        assert world.raw(file_id) == b"a\nb\n"

    def test_gzip(self, world: Any) -> None:
        """Broken if answers and files could not come packed."""
        file_id = world.upload(b"a\nb\n")
        world.sim.faults(kind="gzip")
        answer = world.client.files.with_raw_response.content(file_id)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.http_response.content == b"a\nb\n"
        assert world.client.files.retrieve(file_id).bytes == 4

    @pytest.mark.parametrize("status", [302, 307])
    def test_redirected_download(self, world: Any, status: int) -> None:
        """Broken if a download could not lead to another place of the same host."""
        file_id = world.upload(b"a\n")
        world.sim.faults(kind="redirect", status=status, match=CONTENT)
        answer = world.client.files.with_raw_response.content(file_id)
        assert [hop.status_code for hop in answer.http_response.history] == [status]
        assert answer.http_response.content == b"a\n"

    def test_redirected_create(self, world: Any) -> None:
        """Broken if a create could not be redirected, which a careless client sends again."""
        world.sim.faults(kind="redirect", match={"route": "batches.create"})
        assert world.create("file-x").status == "validating"
        assert len(world.client.batches.list().data) == 1

    def test_slow_drip(self, world: Any) -> None:
        """Broken if a file could not take its time without any call timing out."""
        content = b"x" * 1001
        file_id = world.upload(content)
        world.sim.faults(kind="slow_drip", pieces=5, pause_s=0.02)
        started = time.monotonic()
        assert world.raw(file_id) == content
        assert time.monotonic() - started >= 0.07

    def test_reset_in_mid_download(self, world: Any) -> None:
        """Broken if a connection could not be reset a number of times (openai-python#2959)."""
        file_id = world.upload(b"x" * 300_000)
        world.sim.faults(kind="truncate_download", reset=True, times=2)
        for _ in range(2):
            with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
                world.raw(file_id)
        assert len(world.raw(file_id)) == 300_000

    @pytest.mark.parametrize("after", ["0.2", "130", "1e9", "soon", "Mon, 30 Nov 2099 09:00 GMT"])
    def test_retry_after(self, world: Any, after: str) -> None:
        """Broken if every spelling of Retry-After did not reach the client as it is."""
        world.sim.faults(
            kind="http_error", status=429, headers={"retry-after": after}, match=CONTENT
        )
        with pytest.raises(openai.RateLimitError) as caught:
            world.raw(world.upload(b"a\n"))
        assert caught.value.response.headers["retry-after"] == after


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "rewrite_download", "variant": "odd"},
        {"kind": "odd_errors", "shape": "odd"},
        {"kind": "odd_usage", "shape": "odd"},
        {"kind": "odd_text", "variant": "odd"},
    ],
)
def test_unknown_variants_are_refused(world: Any, rule: dict[str, Any]) -> None:
    """Broken if a misspelt variant failed in the middle of a simulation."""
    with pytest.raises(FaultError, match="'odd' is none of"):
        world.sim.faults(rule)


def test_sound_lines_are_written_as_ever(world: Any, line: Callable[..., bytes]) -> None:
    """Broken if a fault of one line changed another."""
    world.sim.faults(kind="odd_text", variant="nan", match={"prompt": "b"})
    first, second = world.raw(world.finish(world.submit("a", "b")).output_file_id).splitlines()
    assert b"NaN" not in first
    assert b"NaN" in second
