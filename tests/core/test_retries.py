"""What goes wrong with single answers, with whole batches and with calls, and what is done."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from batchor_core import Run
from batchor_core.errors import RunPausedError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.model.states import RunControlState
from tests.core.world import Verdict, World, Worlds, check_conserved, check_paid_once, statuses

CREATE = {"route": "batches.create"}
UPLOAD = {"route": "files.create"}
CONTENT = {"route": "files.content"}
SECOND = {"prompt": "number 1;"}
IMPATIENT = TimingPolicy(lease_s=120, create_timeout_s=0.3, settle_s=180, poll_s=30)


def row(run: Run, item_id: str) -> Any:
    """One row of the result table."""
    frame = run.results_frame().collect()
    return frame.row(frame["item_id"].to_list().index(item_id), named=True)


class TestLines:
    @pytest.mark.parametrize("status", [500, 503, 429, 408])
    def test_a_transient_line_error_is_sent_again(self, world: World, status: int) -> None:
        """A row that failed by chance would be given up, or its retry not be counted."""
        world.sim.faults(kind="line_error", status=status, rounds=1, match=SECOND)
        run = world.run()
        assert run.status == "succeeded"
        assert [r.attempt_count for r in run.results()] == [1, 2, 1, 1, 1, 1]
        assert world.sim.ledger().executed() == 6
        check_conserved(run, 6)

    def test_status_zero_is_sent_again(self, world: World) -> None:
        """The provider's own lost connections would count as answers (ellmer#830)."""
        world.sim.faults(kind="line_status_zero", rounds=1, match=SECOND)
        run = world.run()
        assert statuses(run)["item-1"] == "ok"
        check_conserved(run, 6)

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_a_users_mistake_is_final(self, world: World, status: int) -> None:
        """Money and time would go into requests that can never succeed."""
        world.sim.faults(
            {
                "kind": "line_error",
                "status": status,
                "code": "bad_prompt",
                "message": "No.",
                "match": SECOND,
            }
        )
        run = world.run()
        assert run.status == "completed_with_failures"
        assert run.results()[1].error == {"code": "bad_prompt", "message": "No."}
        assert world.batches() == 1
        check_conserved(run, 6)

    @pytest.mark.parametrize(
        ("on_lost", "end", "batches"), [("fail", "results_lost", 1), ("resend", "ok", 2)]
    )
    def test_a_missing_line_is_looked_for_before_its_row_is_lost(
        self, world: World, on_lost: str, end: str, batches: int
    ) -> None:
        """A row that the provider drops from its files would be paid twice, or wait for ever."""
        world.sim.faults(kind="missing_line", rounds=1, match=SECOND)
        run = world.run(on_lost=on_lost)
        assert statuses(run)["item-1"] == end
        assert world.batches() == batches
        assert world.clock.monotonic() >= 600
        check_conserved(run, 6)

    def test_duplicate_lines_count_once(self, world: World) -> None:
        """A line sent twice by the provider would double a row or its cost."""
        world.sim.faults(kind="duplicate_line", copies=3)
        run = world.run()
        assert (
            run.summary().usage.output_tokens
            == world.sim.ledger().summary()["billed"]["output_tokens"]
        )
        check_conserved(run, 6)

    @pytest.mark.parametrize("structured", [False, True])
    def test_a_valid_line_wins_over_a_faulty_one_before_it(
        self, world: World, structured: bool
    ) -> None:
        """An answer that was paid for would be thrown away for an error line before it."""
        error = b'{"custom_id":"%s","response":{"status_code":500,"body":{}},"error":null}'
        run = world.open(structured_output=Verdict if structured else None)
        run.advance()
        custom_id = _custom_id_of(run, 1)
        raw = (error % custom_id).decode()
        world.sim.faults(kind="bad_line", raw=raw, match=SECOND)
        run.wait()
        assert run.status == "succeeded"
        assert world.batches() == 1
        check_conserved(run, 6)

    def test_a_valid_answer_wins_over_an_invalid_one_before_it(self, world: World) -> None:
        """The first line would win although the model refuses it and the second is fine."""
        body = (
            '{"custom_id":"%s","response":{"status_code":200,"request_id":"r","body":{"output":'
            '[{"type":"message","content":[{"type":"output_text","text":"{}"}]}]}},"error":null}'
        )
        run = world.open(structured_output=Verdict)
        run.advance()
        raw = body % _custom_id_of(run, 1).decode()
        world.sim.faults(kind="bad_line", raw=raw, match=SECOND)
        run.wait()
        assert run.status == "succeeded"
        assert world.batches() == 1

    def test_unknown_ids_are_quarantined(self, world: World) -> None:
        """A line of another batch would crash the run, or be taken for an answer."""
        world.sim.faults(kind="unknown_line", times=2)
        world.sim.faults(kind="unknown_line", custom_id="", times=1)
        run = world.run()
        assert run.status == "succeeded"
        assert [e["quarantined"] for e in world.events("submission.collected")] == [3]
        check_conserved(run, 6)

    @pytest.mark.parametrize(
        "variant",
        [
            "invalid_utf8",
            "blank",
            "non_object",
            "null",
            "truncated",
            "nan",
            "lone_surrogate",
            "nul",
        ],
    )
    def test_a_bad_line_costs_its_own_row_at_most(self, world: World, variant: str) -> None:
        """One unreadable line would take the rest of the file with it, or be fatal."""
        world.sim.faults(kind="bad_line", variant=variant, instead=True, rounds=1, match=SECOND)
        world.sim.faults(kind="bad_line", variant=variant, rounds=1, match={"prompt": "number 3;"})
        run = world.run(on_lost="resend")
        assert run.status == "succeeded"
        assert world.batches() == 2
        check_conserved(run, 6)

    def test_other_line_separators_do_not_split_lines(self, world: World) -> None:
        """An answer with U+2028 in it would be cut in two and lost."""
        world.sim.faults(kind="bad_line", variant="u2028", match=SECOND)
        run = world.run()
        assert "\u2028\u0085" in (run.results()[1].output_text or "")
        assert world.batches() == 1

    @pytest.mark.parametrize(
        "usage",
        [
            {"input_tokens": 2**63, "output_tokens": 10**400},
            {"input_tokens": 2**53 - 1, "output_tokens": 2**53 - 1},
            {"input_tokens": -5, "output_tokens": True},
            {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 10**6}},
        ],
    )
    def test_numbers_of_tokens_that_cannot_be_do_no_harm(
        self, world: World, usage: dict[str, Any]
    ) -> None:
        """Sums beyond 64 bits would crash every cycle; a negative cost makes room in a budget."""
        run = world.open()
        run.advance()
        text = '{"type":"message","content":[{"type":"output_text","text":"x"}]}'
        world.sim.faults(
            kind="bad_line",
            raw=(
                f'{{"custom_id":"{_custom_id_of(run, 1).decode()}","response":{{"status_code":200,'
                f'"body":{{"output":[{text}],"usage":{json.dumps(usage)}}}}}}}'
            ),
            match=SECOND,
        )
        run.wait()
        assert run.status == "succeeded"
        frame = run.results_frame().collect()
        assert frame["batch_input_tokens"].max() < 2**31
        costs = frame["batch_cost_usd"].to_list()
        assert min(costs) >= 0
        assert run.summary().usage.cost_usd == pytest.approx(sum(costs))


class TestAnswers:
    def test_invalid_output_is_retried_up_to_its_own_bound(self, world: World) -> None:
        """A model that cannot keep to the schema would be paid without end."""
        world.sim.faults(kind="invalid_json_answer", match=SECOND)
        run = world.run(
            structured_output=Verdict, retry_policy=RetryPolicy(delay_s=1, max_invalid_attempts=2)
        )
        failed = run.results()[1]
        assert failed.error is not None
        assert failed.error["code"] == "invalid_output"
        assert failed.attempt_count == 2
        assert failed.output_text
        assert failed.output_text.startswith("{")
        assert row(run, "item-1")["label"] is None
        assert world.sim.ledger().times_paid("run-1")["1"] == 2
        check_conserved(run, 6)

    def test_invalid_output_that_gets_better_succeeds(self, world: World) -> None:
        """A second, valid answer would not replace the first, invalid one."""
        world.sim.faults(kind="invalid_json_answer", rounds=1, match=SECOND)
        run = world.run(structured_output=Verdict)
        second = run.results()[1]
        assert isinstance(second.output, Verdict)
        assert second.attempt_count == 2
        # Both answers were paid for: the row's usage is their sum, as the provider's own bill.
        frame = run.results_frame().collect()
        billed = world.sim.ledger().summary()["billed"]
        assert frame["batch_output_tokens"].sum() == billed["output_tokens"]
        assert frame["batch_input_tokens"].sum() == billed["input_tokens"]
        assert frame["batch_cost_usd"].sum() == pytest.approx(run.summary().cost_usd)

    @pytest.mark.parametrize(
        ("fault", "code"),
        [({"kind": "refusal"}, "refused"), ({"kind": "incomplete"}, "truncated")],
    )
    def test_refusals_and_truncation_are_final(
        self, world: World, fault: Mapping[str, Any], code: str
    ) -> None:
        """The same request would be paid for again and refused again."""
        world.sim.faults({**fault, "match": SECOND})
        run = world.run(structured_output=Verdict)
        assert statuses(run) == {f"item-{n}": code if n == 1 else "ok" for n in range(6)}
        assert run.results()[1].output_text
        assert world.batches() == 1

    def test_a_validator_that_raises_anything_fails_its_row_only(self, world: World) -> None:
        """A bug in the user's model would end every cycle of the run with a traceback."""
        run = world.run(structured_output=Fragile, retry_policy=RetryPolicy(max_attempts=1))
        assert set(statuses(run).values()) == {"invalid_output"}
        check_conserved(run, 6)


class Fragile(BaseModel):
    """A model whose validation has a bug."""

    label: str

    @field_validator("label")
    @classmethod
    def _look_up(cls, label: str) -> str:
        return {"known": "value"}[label]


class TestBatches:
    def test_an_expired_batch_resends_exactly_the_rest(self, world: World) -> None:
        """What an expired batch has answered would be paid again, or its rest be lost."""
        world.sim.faults(kind="expire", fraction=0.6, times=1)
        run = world.run(10)
        assert run.status == "succeeded"
        assert {r.attempt_count for r in run.results()} == {1}
        assert list(world.sim.ledger().executed_by_batch().values()) == [6, 4]
        check_paid_once(world)
        check_conserved(run, 10)

    def test_batches_that_always_expire_end_after_max_rounds(self, world: World) -> None:
        """Rows that are never executed would be sent again for ever."""
        world.sim.faults(kind="expire", fraction=0.0)
        run = world.run(retry_policy=RetryPolicy(delay_s=1, max_rounds=3))
        assert run.status == "completed_with_failures"
        assert set(statuses(run).values()) == {"batch_expired"}
        assert {r.attempt_count for r in run.results()} == {0}
        assert world.batches() == 3
        check_conserved(run, 6)

    def test_rows_that_always_fail_end_after_max_attempts(self, world: World) -> None:
        """A row that cannot succeed would be sent again for ever, or hold the run up."""
        world.sim.faults(kind="line_error", status=500, match=SECOND)
        run = world.run(retry_policy=RetryPolicy(delay_s=1, max_attempts=3))
        assert run.status == "completed_with_failures"
        assert statuses(run)["item-1"] == "server_error"
        assert [r.attempt_count for r in run.results()] == [1, 3, 1, 1, 1, 1]
        assert world.batches() == 3
        check_conserved(run, 6)

    def test_retries_wait_longer_each_round(self, world: World) -> None:
        """A struggling provider would be asked again at once."""
        world.sim.faults(kind="line_error", status=500, match=SECOND)
        world.run(retry_policy=RetryPolicy(delay_s=100, max_attempts=3))
        working, waiting = 3 * 100, 100 + 200
        assert working + waiting <= world.clock.monotonic() <= working + 1.1 * waiting + 200

    def test_a_rejected_batch_fails_only_the_lines_it_names(self, world: World) -> None:
        """One bad row would fail all rows of its batch."""
        error = {"code": "invalid_thing", "line": 2, "message": "Bad.", "param": None}
        world.sim.faults(kind="fail_batch", errors=[error], times=1)
        run = world.run()
        assert statuses(run) == {f"item-{n}": "invalid_thing" if n == 1 else "ok" for n in range(6)}
        assert [r.attempt_count for r in run.results()] == [1, 0, 1, 1, 1, 1]
        check_conserved(run, 6)

    def test_a_rejected_batch_that_names_no_line_is_bounded(self, world: World) -> None:
        """A file that is always rejected would be sent for ever."""
        world.sim.faults(kind="fail_batch")
        run = world.run(retry_policy=RetryPolicy(delay_s=1, max_rounds=2))
        assert set(statuses(run).values()) == {"batch_rejected"}
        assert world.batches() == 2
        check_conserved(run, 6)

    def test_a_full_queue_is_no_failure(self, worlds: Worlds) -> None:
        """Rows would fail, or use up their attempts, because others are in the queue."""
        world = worlds(enqueued_token_limit=100)
        run = world.run(20, chunk_policy=ChunkPolicy(max_requests=5))
        assert run.status == "succeeded"
        assert {r.attempt_count for r in run.results()} == {1}
        check_paid_once(world)
        check_conserved(run, 20)

    def test_a_chunk_above_the_queues_limit_is_split(self, worlds: Worlds) -> None:
        """A chunk that can never fit would wait for ever."""
        world = worlds(enqueued_token_limit=80)
        run = world.run(20)
        assert run.status == "succeeded"
        assert "chunk.split" in world.kinds()
        assert {r.attempt_count for r in run.results()} == {1}
        check_conserved(run, 20)


class TestCalls:
    def test_a_file_that_is_too_large_is_split(self, world: World) -> None:
        """A request file above the host's limit would fail for ever."""
        world.sim.faults(kind="http_error", status=413, times=2, match=UPLOAD)
        run = world.run(8)
        assert run.status == "succeeded"
        assert world.kinds().count("chunk.split") == 2
        check_conserved(run, 8)

    def test_one_row_that_is_too_large_fails(self, world: World) -> None:
        """A row that no file can hold would hold the run up for ever."""
        world.sim.faults(kind="http_error", status=413, times=2, match=UPLOAD)
        run = world.run(2)
        assert list(statuses(run).values()) == ["request_too_large", "ok"]
        check_conserved(run, 2)

    def test_a_provider_that_refuses_every_size_ends_in_failed_rows(self, world: World) -> None:
        """Splitting would not come to an end."""
        world.sim.faults(kind="http_error", status=413, match=CREATE)
        run = world.run(5)
        assert set(statuses(run).values()) == {"request_too_large"}
        assert world.batches() == 0
        check_conserved(run, 5)

    def test_a_definite_refusal_fails_the_rows(self, world: World) -> None:
        """A request that the provider will never take would be repeated for ever."""
        world.sim.faults(
            kind="http_error", status=400, code="bad_model", message="No such model.", match=CREATE
        )
        run = world.run(3)
        assert run.status == "completed_with_failures"
        assert run.results()[0].error == {"code": "bad_model", "message": "No such model."}
        check_conserved(run, 3)

    @pytest.mark.parametrize(
        ("status", "code"), [(429, "insufficient_quota"), (401, "invalid_api_key"), (403, "denied")]
    )
    def test_account_trouble_pauses_and_resume_goes_on(
        self, world: World, status: int, code: str
    ) -> None:
        """An unpaid bill would fail rows, or the run would hammer the provider."""
        world.sim.faults(
            kind="http_error", status=status, code=code, message="Pay.", times=1, match=CREATE
        )
        run = world.open()
        with pytest.raises(RunPausedError, match=code):
            run.wait()
        assert run.control_reason == f"{code}: Pay."
        assert run.counts().ready == 6
        run.resume().wait()
        assert run.status == "succeeded"
        check_conserved(run, 6)

    def test_account_trouble_while_polling_pauses_and_keeps_everything(self, world: World) -> None:
        """A revoked key would lose what is in flight."""
        run = world.open()
        run.advance()
        world.sim.faults(kind="http_error", status=401, code="invalid_api_key", match={})
        with pytest.raises(RunPausedError, match="invalid_api_key"):
            run.wait()
        world.sim.clear_faults()
        run.resume().wait()
        assert run.status == "succeeded"
        assert world.batches() == 1

    @pytest.mark.parametrize("with_length", [True, False])
    def test_a_truncated_download_is_repeated(self, world: World, with_length: bool) -> None:
        """Half a result file would count as the whole, and paid answers be bought again."""
        world.sim.faults(kind="truncate_download", times=1, with_length=with_length, match=CONTENT)
        run = world.run(50)
        assert run.status == "succeeded"
        assert world.batches() == 1
        check_conserved(run, 50)

    def test_a_download_that_fails_is_not_repeated_at_once(self, world: World) -> None:
        """A provider in trouble would be asked for the whole file five times a second."""
        world.sim.faults(kind="http_error", status=502, match=CONTENT, times=3)
        run = world.open()
        run.advance()
        world.clock.sleep(200)
        run.wait()
        assert run.status == "succeeded"
        assert world.clock.monotonic() >= 200 + 2 * 30

    @pytest.mark.parametrize("route", ["files.create", "batches.get", "batches.list"])
    def test_server_errors_of_calls_cost_no_attempt(self, world: World, route: str) -> None:
        """A bad minute of the provider would fail rows."""
        world.sim.faults(kind="http_error", status=500, times=3, match={"route": route})
        run = world.run()
        assert run.status == "succeeded"
        assert world.batches() == 1
        check_conserved(run, 6)

    def test_what_was_refused_leaves_no_files_at_the_provider(self, world: World) -> None:
        """Each refused try would leave its upload in the account for good."""
        world.sim.faults(kind="http_error", status=429, times=3, match=CREATE)
        run = world.run()
        assert run.status == "succeeded"
        assert world.sim.state.openai.list_files({})["data"] == []

    def test_a_batch_that_is_not_found_at_first_is_not_lost(self, world: World) -> None:
        """A 404 shortly after the create would count as proof of absence."""
        world.sim.faults(kind="not_found_after_create", gets=3)
        run = world.run()
        assert run.status == "succeeded"
        assert world.batches() == 1


class TestUnknownOutcomes:
    @pytest.mark.parametrize(
        "fault",
        [
            {"kind": "drop_after_commit"},
            {"kind": "hang", "seconds": 5.0, "after_commit": True},
        ],
    )
    def test_a_batch_whose_answer_was_lost_is_adopted(self, world: World, fault: Any) -> None:
        """The batch would be created, and paid for, a second time."""
        world.sim.faults({**fault, "times": 1, "match": CREATE})
        run = world.run(timing=IMPATIENT)
        assert run.status == "succeeded"
        assert world.batches() == 1
        assert [e["adopted"] for e in world.events("submission.activated")] == [True]
        check_paid_once(world)

    @pytest.mark.parametrize(
        "fault",
        [
            {"kind": "drop_before_commit"},
            {"kind": "hang", "seconds": 5.0},
            {"kind": "http_error", "status": 500},
            {"kind": "http_error", "status": 200, "body": "<html>"},
        ],
    )
    def test_a_batch_that_was_never_created_is_sent_after_settling(
        self, world: World, fault: Any
    ) -> None:
        """The run would wait for ever, or send again before it can know."""
        world.sim.faults({**fault, "times": 1, "match": CREATE})
        run = world.run(timing=IMPATIENT)
        assert run.status == "succeeded"
        assert world.batches() == 1
        assert world.clock.monotonic() >= 180
        check_paid_once(world)

    def test_a_list_that_lags_is_looked_at_until_the_batch_shows(self, world: World) -> None:
        """A look at a list that does not show the batch yet would count as proof."""
        world.sim.faults(kind="drop_after_commit", times=1, match=CREATE)
        world.sim.faults(kind="list_lag_seconds", seconds=150.0)
        run = world.run(timing=IMPATIENT)
        assert world.batches() == 1
        assert [e["adopted"] for e in world.events("submission.activated")] == [True]
        assert run.status == "succeeded"

    def test_looking_while_unsettled_is_not_a_busy_loop(self, world: World) -> None:
        """The provider's list would be asked several times a second for minutes."""
        world.sim.faults(kind="drop_before_commit", times=1, match=CREATE)
        looks = 0
        run = world.open(timing=IMPATIENT)
        while not run.is_finished:
            progress = run.advance()
            if not progress.did:
                looks += 1
                assert progress.next_due is not None
                wait = progress.next_due - world.clock.now()
                world.clock.sleep(max(0.2, wait.total_seconds()))
        assert looks < 30

    def test_a_skewed_provider_clock_does_not_shorten_the_settling(self, world: World) -> None:
        """A provider whose clock is hours ahead would make us send again too early."""
        world.sim.faults(kind="clock_offset_seconds", seconds=7200.0)
        world.sim.faults(kind="drop_after_commit", times=1, match=CREATE)
        world.sim.faults(kind="list_lag_seconds", seconds=100.0)
        world.run(timing=IMPATIENT)
        assert world.batches() == 1
        check_paid_once(world)


def test_control_state_is_untouched_by_item_trouble(world: World) -> None:
    """Trouble of single rows would stop the whole run."""
    world.sim.faults(kind="line_error", status=401, code="denied", rounds=1, match=SECOND)
    run = world.run()
    assert run.control_state is RunControlState.RUN
    assert [r.attempt_count for r in run.results()] == [1] * 6


def _custom_id_of(run: Run, row_number: int) -> bytes:
    chunk = run._store.list_chunks(run.run_id)[0]
    return f"{chunk.token}-{row_number}".encode()
