"""Every hostile shape of provider that was ever reported, each against a whole run over HTTP.

Whatever comes back: the run ends, every row is in the results once, each row whose answer exists
somewhere has exactly that answer, and no sound answer is paid for twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batchor_core import Run
from batchor_core.errors import RunPausedError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from batchor_core.simulator.answers import NOTICE
from tests.core.world import (
    BATCH_SECONDS,
    World,
    Worlds,
    check_conserved,
    check_paid_once,
    statuses,
)

ROWS = 24
CHUNKS = 2
DAY_S = 86_400.0
CREATE = {"route": "batches.create"}
UPLOAD = {"route": "files.create"}
CONTENT = {"route": "files.content"}
GET = {"route": "batches.get"}
LIST = {"route": "batches.list"}
FIRST = {"batch": 0}
SECOND = {"prompt": "number 1;"}
PAGE = "<html><body>502 Bad Gateway</body></html>"
NO_LIST = ("batches.list",)

Rule = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way of being hostile, and what a run makes of it.

    Attributes:
        rules: The faults.
        batches: Provider batches that the run needs.
        quarantined: Result lines that it puts aside.
        attempts: What rows used up that did not need one only, by row number.
        tells: The kind of an event that has to be in the journal.
    """

    name: str
    rules: Sequence[Rule]
    batches: int = CHUNKS
    quarantined: int = 0
    attempts: Mapping[int, int] = field(default_factory=dict)
    tells: str = "submission.collected"

    def __str__(self) -> str:
        return self.name


def case(name: str, *rules: Rule, **expected: Any) -> Case:
    """A case with its rules in a row."""
    return Case(name=name, rules=rules, **expected)


def call(route: Mapping[str, str], times: int = 1, **rule: Any) -> Rule:
    """A call that is answered with an HTTP error, or with anything else in its place."""
    return {"kind": "http_error", "match": route, "times": times, **rule}


RECORDS = [
    case("ids are empty strings", {"kind": "empty_ids"}),
    case("counts, metadata and endpoint are null", {"kind": "null_fields"}),
    case("one count is null", {"kind": "null_fields", "fields": ["request_counts.completed"]}),
    case("created_at is null", {"kind": "null_fields", "fields": ["created_at", "input_file_id"]}),
    case("status in upper case", {"kind": "odd_status", "upper": True}),
    case(
        "status words of other hosts",
        {
            "kind": "odd_status",
            "words": {"validating": "queued", "in_progress": "running", "completed": "succeeded"},
        },
    ),
    case(
        "status words that nobody knows",
        {"kind": "odd_status", "words": {"validating": "", "in_progress": "☃", "finalizing": "x"}},
    ),
    case("counts that say all is well", {"kind": "lying_counts"}),
    case(
        "counts as text, and more than was sent",
        {"kind": "lying_counts", "counts": {"total": "99"}},
    ),
    case(
        "counts lie over status 0",
        {"kind": "line_status_zero", "match": SECOND, "rounds": 1},
        {"kind": "lying_counts"},
        batches=3,
        attempts={1: 2},
    ),
    case("finalizing for an hour", {"kind": "finalizing_hold", "seconds": 3600.0}),
    case("an error file of 0 bytes", {"kind": "empty_files"}),
    *(
        case(
            f"failed with errors as {shape}",
            {"kind": "fail_batch", "code": "odd", "message": "Odd.", "match": FIRST},
            {"kind": "odd_errors", "shape": shape},
            batches=3,
        )
        for shape in ("text", "list", "texts", "null", "null_data", "empty")
    ),
    case(
        "failed, and names a file and null counts",
        {"kind": "fail_batch", "match": FIRST},
        {"kind": "stray_ids", "fields": ["output_file_id"], "match": FIRST},
        {"kind": "null_fields", "fields": ["request_counts.completed"]},
        batches=3,
    ),
    case(
        "expired with a tenth done and failed=0",
        {"kind": "expire", "fraction": 0.1, "match": FIRST},
        {"kind": "lying_counts", "counts": {"completed": 1}},
        batches=3,
    ),
]

LISTS = [
    case("the list is oldest first", {"kind": "list_oldest_first"}),
    case("the list repeats its cursor", {"kind": "repeat_cursor"}),
    case("batches are never listed", {"kind": "never_listed"}),
    case("batches are listed late", {"kind": "list_lag_seconds", "seconds": 90.0}),
    case("the list is a page", call(LIST, 9, status=200, body=PAGE)),
    *(
        case(
            f"a lost create, and {name}",
            {"kind": "drop_after_commit", "match": CREATE, "times": 1},
            *rules,
        )
        for name, rules in {
            "the list is oldest first": [{"kind": "list_oldest_first"}],
            "the list repeats its cursor": [{"kind": "repeat_cursor"}],
            "the list lags": [{"kind": "list_lag_seconds", "seconds": 100.0}],
            "the list has no metadata": [{"kind": "null_fields"}],
            "the list has no input file": [{"kind": "null_fields", "fields": ["input_file_id"]}],
            "the list is down for a while": [call(LIST, 3, status=502, body=PAGE)],
        }.items()
    ),
]

CALLS = (
    [
        case(
            f"{name} to {route['route']}",
            call(route, 2 if route != CREATE else 1, **rule),
        )
        for route in (UPLOAD, CREATE, GET, LIST, CONTENT)
        for name, rule in {
            "502 with a page": {"status": 502, "body": PAGE},
            "200 with a page": {"status": 200, "body": PAGE},
            "200 with null": {"status": 200, "body": "null", "media_type": "application/json"},
            "200 with half a JSON": {
                "status": 200,
                "body": '{"id":',
                "media_type": "application/json",
            },
            "404": {"status": 404},
            "408": {"status": 408},
            "429": {"status": 429, "code": "rate_limit_exceeded"},
            "529": {"status": 529},
        }.items()
        # A 404 to an upload is a wrong address, and pauses.
        if not (name == "404" and route == UPLOAD)
    ]
    + [
        case(
            f"429 with retry-after {after}",
            call(CREATE, status=429, headers={"retry-after": after}),
            call(GET, status=429, headers={"retry-after": after}),
            call(CONTENT, status=429, headers={"retry-after": after}),
        )
        for after in (
            "0.2",
            "130",
            "1e9",
            "-1",
            "nan",
            "soon",
            "Thu, 01 Jan 2099 00:00:00 GMT",
            "Thu, 01 Jan 1998 00:00:00 GMT",
        )
    ]
    + [
        case(
            "404 between two 200s",
            *(call(GET, status=404) | {"skip": skip} for skip in (1, 2, 3)),
            call(LIST, 99, status=503),
        ),
        case("not found after create", {"kind": "not_found_after_create", "gets": 3}),
        case(
            "Azure's full queue",
            call(CREATE, 2, status=400, code="token_limit_exceeded"),
            tells="submission.voided",
        ),
        case("a redirect of the create", {"kind": "redirect", "match": CREATE, "times": 1}),
        case("a redirect of downloads", {"kind": "redirect", "status": 302, "match": CONTENT}),
        case(
            "a redirect of reads",
            {"kind": "redirect", "match": GET},
            {"kind": "redirect", "match": LIST},
        ),
        case("everything is packed", {"kind": "gzip"}),
        case("the provider's clock is ahead", {"kind": "clock_offset_seconds", "seconds": 7200.0}),
        case(
            "the provider's clock is behind", {"kind": "clock_offset_seconds", "seconds": -7200.0}
        ),
    ]
)

DOWNLOADS = [
    *(
        case(
            f"a file with {variant}",
            {"kind": "rewrite_download", "variant": variant, "match": CONTENT, **more},
        )
        for variant, more in {
            "bom": {},
            "crlf": {},
            "blank_lines": {},
            "no_last_newline": {},
            "utf16": {"times": 1},
            "page": {"times": 1},
            "empty": {"times": 1},
        }.items()
    ),
    case(
        "a file with nul_tail",
        {"kind": "rewrite_download", "variant": "nul_tail", "match": CONTENT},
        quarantined=CHUNKS,
    ),
    case("a slow download", {"kind": "slow_drip", "pieces": 5, "pause_s": 0.01}),
    case(
        "a truncated file",
        {"kind": "truncate_download", "match": CONTENT, "times": 2},
        tells="submission.put_off",
    ),
    case(
        "a truncated file of no length",
        {"kind": "truncate_download", "match": CONTENT, "with_length": False, "times": 1},
    ),
    case(
        "a connection reset 5 times",
        {"kind": "truncate_download", "match": CONTENT, "reset": True, "times": 5},
    ),
    case(
        "files that are not ready",
        {"kind": "results_not_ready", "gets": 4},
        tells="submission.put_off",
    ),
    case(
        "a file that keeps being not there",
        call(CONTENT, 9, status=404),
        tells="submission.put_off",
    ),
    case(
        "an error file that does not exist",
        {"kind": "stray_ids", "fields": ["error_file_id"], "match": FIRST},
    ),
    case(
        "completed, and no files",
        {"kind": "results_missing", "match": FIRST},
        batches=3,
        attempts=dict.fromkeys(range(ROWS // CHUNKS), 2),
    ),
    case(
        "completed, and the files are named late",
        {
            "kind": "null_fields",
            "fields": ["output_file_id"],
            "times": 2 * CHUNKS,
            "skip": 2 * CHUNKS,
        },
    ),
    case(
        "all failed: no output file",
        {"kind": "line_error", "status": 500, "match": FIRST},
        batches=3,
        attempts=dict.fromkeys(range(ROWS // CHUNKS), 2),
    ),
]


def _line(name: str, kind: str, **rule: Any) -> Case:
    """One line that is lost to its shape: its row is sent again."""
    expected = {key: rule.pop(key) for key in ("quarantined", "attempts") if key in rule}
    strikes = {"kind": kind, "match": SECOND, "rounds": 1, **rule}
    return case(name, strikes, **{"batches": 3, "attempts": {1: 2}, **expected})


LINES = [
    case("bodies as JSON text", {"kind": "body_as_text"}),
    *(
        case(f"usage is {shape}", {"kind": "odd_usage", "shape": shape})
        for shape in ("absent", "null", "text", "list")
    ),
    case("another model answers", {"kind": "other_model"}),
    case("answers in the error file", {"kind": "wrong_file"}),
    _line("an error line among the answers", "line_error", status=503),
    case("lines of a foreign batch", {"kind": "foreign_line"}, quarantined=ROWS),
    case("unknown ids", {"kind": "unknown_line", "times": 3}, quarantined=3),
    case("duplicate lines", {"kind": "duplicate_line", "copies": 3}),
    case("a huge answer", {"kind": "huge_answer", "match": SECOND}),
    case("a huge line", {"kind": "huge_line", "match": SECOND}, quarantined=1),
    case("NUL in an answer", {"kind": "odd_text", "variant": "nul"}),
    case("half a surrogate in an answer", {"kind": "odd_text", "variant": "surrogate"}),
    case("NaN in a line", {"kind": "odd_text", "variant": "nan"}),
    case("counts beyond any integer", {"kind": "odd_text", "variant": "big_count"}),
    case("U+2028 in an answer", {"kind": "bad_line", "variant": "u2028"}),
    _line("invalid UTF-8 in an answer", "odd_text", variant="invalid_utf8", quarantined=1),
    _line("a line nested too deep", "odd_text", variant="too_deep", quarantined=1),
    _line("a line without its id", "wrong_custom_id", quarantined=1),
    _line("a line with an empty id", "wrong_custom_id", custom_id="", quarantined=1),
    _line("an id that is a number", "wrong_custom_id", custom_id=7, quarantined=1),
    _line("a missing line", "missing_line"),
    _line("status 0", "line_status_zero"),
    _line("no response", "line_without_response"),
    _line("no field response", "line_without_response", absent=True),
    _line("a failure under HTTP 200", "failed_body"),
    *(
        _line(f"a line is {variant}", "bad_line", variant=variant, instead=True, **more)
        for variant, more in {
            "invalid_utf8": {"quarantined": 1},
            "blank": {},
            "non_object": {"quarantined": 1},
            "null": {"quarantined": 1},
            "truncated": {"quarantined": 1},
            "nan": {"quarantined": 1},
            "lone_surrogate": {"quarantined": 1},
            "nul": {"quarantined": 1},
        }.items()
    ),
]

MONEY = [
    _line(f"{status} {code} in a line", "line_error", status=status, code=code, attempts={})
    for status, code in [
        (401, "invalid_api_key"),
        (402, None),
        (403, "permission_denied"),
        (429, "insufficient_quota"),
        (400, "billing_hard_limit_reached"),
        (429, "billing_not_active"),
    ]
] + [
    _line("quota under HTTP 200", "failed_body", code="insufficient_quota", attempts={}),
    _line(
        "quota without response", "line_without_response", code="insufficient_quota", attempts={}
    ),
]


def run_in(world: World, **options: Any) -> Run:
    """Drive a run of two chunks to its end."""
    policies = {
        "chunk_policy": ChunkPolicy(max_requests=ROWS // CHUNKS),
        "retry_policy": RetryPolicy(delay_s=1, max_attempts=3),
    }
    return world.run(ROWS, **{**policies, **options})


def answer_to(row: int) -> str:
    """What the simulator says to a row that no fault changes."""
    return f"Simulated answer ({NOTICE}) to: Prompt number {row};"


def plain(text: str | None) -> str:
    """An answer without what a rule put into it."""
    text = (text or "").replace("\u2028\u0085", " ", 1).rstrip("x")
    return text.replace("Simu\0lated", "Simulated").replace("Simu?lated", "Simulated")


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    """One provider for all cases; its time stands still but for sleeps."""
    options = SimulatorOptions(batch_seconds=BATCH_SECONDS)
    with Simulator(options, clock=SimulatorClock(monotonic=lambda: 0.0)) as running:
        yield running


@pytest.fixture
def world(simulator: Simulator, tmp_path: Path) -> Iterator[World]:
    """A new control plane before the shared provider, which forgets what was before."""
    simulator.reset()
    world = World(simulator, tmp_path)
    yield world
    for runner in world._runners:
        runner.close()


@pytest.mark.parametrize(
    "each",
    [*RECORDS, *LISTS, *CALLS, *DOWNLOADS, *LINES, *MONEY],
    ids=str,
)
def test_a_run_survives(world: World, each: Case) -> None:
    """A provider that behaves like this would lose rows, be paid twice, or end the run."""
    world.sim.faults(*each.rules)
    run = run_in(world, on_lost="resend")
    assert run.status == "succeeded", statuses(run)
    check_conserved(run, ROWS)
    check_paid_once(world)
    results = run.results()
    assert [plain(r.output_text) for r in results] == [answer_to(n) for n in range(ROWS)]
    used = {row: r.attempt_count for row, r in enumerate(results) if r.attempt_count != 1}
    assert used == each.attempts
    assert world.batches() == each.batches
    collected = world.events("submission.collected")
    assert sum(event["quarantined"] for event in collected) == each.quarantined
    assert sum(event["ok_count"] for event in collected) == ROWS
    assert each.tells in world.kinds()


def test_answers_in_any_order(worlds: Worlds) -> None:
    """Answers would be given to rows by their position in the file."""
    world = worlds(shuffle_output=True)
    run = run_in(world)
    assert [r.output_text for r in run.results()] == [answer_to(n) for n in range(ROWS)]
    check_conserved(run, ROWS)


def test_a_quota_that_is_released_late(worlds: Worlds) -> None:
    """A queue that stays full after its batches have ended would fail rows, or be hammered."""
    world = worlds(enqueued_token_limit=300)
    world.sim.faults(kind="quota_held_seconds", seconds=3600.0)
    run = run_in(world)
    assert run.status == "succeeded"
    assert {r.attempt_count for r in run.results()} == {1}
    assert world.clock.monotonic() >= 3600
    assert world.batches() < 20  # the waits double from a second on
    check_conserved(run, ROWS)
    check_paid_once(world)


def test_a_batch_with_too_many_requests_is_split(worlds: Worlds) -> None:
    """The first row above a host's own limit would fail, and the next one after it."""
    world = worlds(max_requests_per_batch=10)
    run = run_in(world)
    assert run.status == "succeeded"
    assert world.kinds().count("chunk.split") == CHUNKS
    check_conserved(run, ROWS)
    check_paid_once(world)


class TestWhatDoesNotGetBetter:
    def test_a_create_that_is_always_redirected(self, world: World) -> None:
        """Creates of unknown outcome would be repeated for ever."""
        world.sim.faults(kind="redirect", match=CREATE)
        with pytest.raises(RunPausedError, match="creates_vanish"):
            run_in(world)
        assert world.batches() == 0

    def test_uploads_that_a_create_never_finds(self, world: World) -> None:
        """A wrong project's 404 would be repeated for ever, or fail rows."""
        world.sim.faults(call(CREATE, 99, status=404, code="not_found"))
        with pytest.raises(RunPausedError, match="not_found"):
            run_in(world)
        assert world.runner.get_run("run-1").counts().ready == ROWS
        assert 4 <= world.kinds().count("submission.voided") <= 2 * 4

    def test_a_wrong_address(self, world: World) -> None:
        """A mistake in the base URL would show only after minutes of waiting."""
        world.sim.faults(call(UPLOAD, 99, status=404))
        with pytest.raises(RunPausedError, match="Simulated failure"):
            run_in(world)
        assert world.kinds().count("submission.voided") == 1

    def test_rows_that_the_account_may_never_send(self, world: World) -> None:
        """A row-level quota error would use up attempts, pause the run, or never end."""
        world.sim.faults(
            kind="line_error", status=403, code="model_not_allowed", message="No.", match=SECOND
        )
        run = run_in(world, retry_policy=RetryPolicy(delay_s=1, max_rounds=4))
        assert run.status == "completed_with_failures"
        failed = run.results()[1]
        assert (failed.error, failed.attempt_count) == (
            {"code": "model_not_allowed", "message": "No."},
            0,
        )
        assert world.batches() == CHUNKS + 3
        assert "run.controlled" not in world.kinds()
        check_conserved(run, ROWS)

    def test_files_that_never_become_readable(self, world: World) -> None:
        """Garbage in place of results would be downloaded without end, or be paid for again."""
        world.sim.faults(kind="rewrite_download", variant="utf16")
        run = run_in(world, retry_policy=RetryPolicy(delay_s=1, max_attempts=2))
        assert set(statuses(run).values()) == {"results_lost"}
        assert {r.attempt_count for r in run.results()} == {1}
        assert run.summary().usage.cost_usd is None
        check_conserved(run, ROWS)


class TestLostResults:
    """What the provider knows no more: files after their retention, or whole batches."""

    GONE = ({"kind": "results_gone", "match": FIRST},)
    UNKNOWN = (
        {"kind": "not_found_after_create", "gets": 10**6, "match": FIRST},
        {"kind": "never_listed"},
    )
    HALF = range(ROWS // CHUNKS)

    @pytest.mark.parametrize("rules", [GONE, UNKNOWN], ids=["files", "batch"])
    def test_lost_rows_fail_by_default(self, world: World, rules: Sequence[Rule]) -> None:
        """Rows would be paid for again without the user's consent, or the run wait for ever."""
        world.sim.faults(*rules)
        run = run_in(world)
        lost = {row for row, code in enumerate(statuses(run).values()) if code == "results_lost"}
        assert lost == set(self.HALF)
        assert world.batches() == CHUNKS
        assert {r.attempt_count for r in run.results()} == {1}
        assert world.clock.monotonic() >= 600
        check_conserved(run, ROWS)

    @pytest.mark.parametrize("rules", [GONE, UNKNOWN], ids=["files", "batch"])
    def test_resend_sends_them_again(self, world: World, rules: Sequence[Rule]) -> None:
        """A user who wants the answers whatever they cost would not get them."""
        world.sim.faults(*rules)
        run = run_in(world, on_lost="resend")
        assert run.status == "succeeded"
        attempts = [r.attempt_count for r in run.results()]
        assert attempts == [2] * len(self.HALF) + [1] * len(self.HALF)
        assert world.batches() == CHUNKS + 1
        check_conserved(run, ROWS)

    def test_resending_is_bounded(self, world: World) -> None:
        """A provider that loses all results would be paid without end."""
        world.sim.faults(kind="results_gone")
        retry_policy = RetryPolicy(delay_s=1, max_attempts=2)
        run = run_in(world, on_lost="resend", retry_policy=retry_policy)
        assert set(statuses(run).values()) == {"results_lost"}
        assert world.batches() == 2 * CHUNKS
        check_conserved(run, ROWS)

    def test_what_is_left_of_the_files_is_kept(self, world: World) -> None:
        """Answers that are there would be thrown away because another file is gone."""
        world.sim.faults(kind="line_error", status=400, code="bad", match=SECOND)
        run = world.open(4)
        run.advance()
        world.clock.sleep(BATCH_SECONDS)
        (batch,) = world.sim.state.openai.list_batches({})["data"]
        world.sim.state.openai.delete_file(batch["error_file_id"])
        run.wait()
        assert list(statuses(run).values()) == ["ok", "results_lost", "ok", "ok"]
        check_conserved(run, 4)

    def test_an_interrupted_series_of_404s_proves_nothing(self, world: World) -> None:
        """A flapping provider would lose results that it still has."""
        for _ in range(5):
            world.sim.faults(call(CONTENT, 7, status=404), call(CONTENT, 1, status=503))
        run = world.run(4)
        assert run.status == "succeeded"
        assert world.clock.monotonic() >= 39 * 30
        assert world.kinds().count("submission.put_off") == 1

    def test_a_single_look_long_after_the_end_proves_nothing(self, world: World) -> None:
        """A run that nobody drove for a day would take one 404 for the loss of its results."""
        run = world.open(4)
        run.advance()
        world.clock.sleep(BATCH_SECONDS)
        world.sim.faults(call(CONTENT, 1, status=404))
        run.advance()
        world.clock.sleep(DAY_S)
        world.sim.faults(call(CONTENT, 3, status=404))
        run.wait()
        assert run.status == "succeeded"

    def test_cancelling_does_not_wait_for_what_is_gone_for_ever(self, world: World) -> None:
        """A cancelled run whose results are gone could never be closed."""
        world.sim.faults(kind="results_gone")
        run = world.open(4)
        run.advance()
        world.clock.sleep(BATCH_SECONDS)
        run.advance()
        run.cancel()
        run.wait()
        assert run.status == "cancelled"
        assert set(statuses(run).values()) == {"results_lost"}
        check_conserved(run, 4)

    def test_the_choice_survives_the_process(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that another process drives would do as by default."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        world.sim.faults(kind="results_gone", match=FIRST)
        world.open(4, on_lost="resend").advance()
        with world.new_runner() as other:
            run = other.get_run("run-1").wait()
        assert run.status == "succeeded"
