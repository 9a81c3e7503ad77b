"""What was executed is waited for and counted, and is not bought again unseen."""

from typing import Any

import pytest

from tests.core.test_every_provider import every_provider
from tests.core.world import BATCH_SECONDS, World, check_conserved, check_paid_once, statuses

CANCELLED = "run_cancelled"


def _cancel_batch(world: World) -> None:
    (batch,) = world.sim.state.openai.list_batches({})["data"]
    world.sim.state.openai.cancel_batch(batch["id"])


class TestFilesNamedLate:
    """OpenAI names the files of a batch that expired or was cancelled some looks after its end."""

    @pytest.mark.parametrize("looks", [1, 3])
    @pytest.mark.parametrize("field", ["both", "output_file_id", "error_file_id"])
    def test_of_an_expired_batch(self, world: World, field: str, looks: int) -> None:
        """What was executed would be believed not to have been, and be sent and paid again."""
        world.sim.faults(kind="expire", fraction=0.5, times=1)
        world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 0;"})
        fields = ["output_file_id", "error_file_id"] if field == "both" else [field]
        world.sim.faults(kind="late_files", fields=fields, rounds=looks, match={"batch": 0})
        run = world.run(10)
        assert run.status == "succeeded"
        assert [r.attempt_count for r in run.results()] == [2, *[1] * 9]
        assert list(world.sim.ledger().executed_by_batch().values()) == [4, 6]
        check_paid_once(world)
        check_conserved(run, 10)

    def test_of_a_batch_that_somebody_cancelled(self, world: World) -> None:
        """Rows that were executed before the cancel would be paid again."""
        world.sim.faults(kind="late_files", rounds=2)
        run = world.open(10)
        run.advance()
        world.clock.sleep(BATCH_SECONDS / 2)
        _cancel_batch(world)
        run.wait()
        assert run.status == "succeeded"
        assert list(world.sim.ledger().executed_by_batch().values()) == [5, 5]
        check_paid_once(world)
        check_conserved(run, 10)

    def test_of_a_cancelled_run(self, world: World) -> None:
        """Answers that were paid for would be thrown away with the rest."""
        world.sim.faults(kind="late_files", rounds=2)
        run = world.open(10)
        run.advance()
        world.clock.sleep(BATCH_SECONDS / 2)
        run.cancel()
        run.wait()
        assert run.status == "cancelled"
        assert list(statuses(run).values()) == ["ok"] * 5 + [CANCELLED] * 5
        check_conserved(run, 10)

    def test_waiting_for_them_ends(self, world: World) -> None:
        """A host that never names them would hold its run for ever."""
        world.sim.faults(kind="expire", fraction=0.5, times=1)
        world.sim.faults(kind="late_files", match={"batch": 0})
        run = world.run(10)
        assert run.status == "completed_with_failures"
        assert set(statuses(run).values()) == {"results_lost"}
        assert 600 <= world.clock.monotonic() <= 1_500
        assert world.batches() == 1
        assert run.summary().usage.cost_usd is None
        check_conserved(run, 10)

    def test_a_batch_that_came_to_nothing_is_not_waited_for(self, world: World) -> None:
        """Rows of which none was executed would wait for files that there cannot be."""
        world.sim.faults(kind="expire", fraction=0.0, times=1)
        world.sim.faults(kind="late_files", match={"batch": 0})
        run = world.run(10)
        assert run.status == "succeeded"
        assert "submission.put_off" not in world.kinds()
        assert {r.attempt_count for r in run.results()} == {1}
        check_paid_once(world)


class TestNotFound:
    """What a batch says it executed, and does not show, is not bought again unseen."""

    FIELDS = ("output_file_id", "error_file_id")

    @pytest.mark.parametrize("field", FIELDS)
    def test_of_two_files_one_is_named_late(self, world: World, field: str) -> None:
        """58 of 60 answers would be paid twice for the two that failed."""
        world.sim.faults(kind="line_error", status=400, match={"prompt": "number 0;"})
        world.sim.faults(kind="late_files", fields=[field], rounds=3)
        run = world.run(10)
        assert list(statuses(run).values()).count("ok") == 9
        assert world.batches() == 1
        check_conserved(run, 10)

    @every_provider
    def test_answers_under_ids_that_were_never_sent(self, world: World, config: Any) -> None:
        """Each row would be paid three times, and a budget know of none of it."""
        world.sim.faults(kind="wrong_custom_id", custom_id="never-sent")
        run = world.run(4, provider_config=config(world.sim))
        assert set(statuses(run).values()) == {"results_lost"}
        assert world.sim.ledger().executed() == 4
        assert (
            run.summary().usage.output_tokens
            == world.sim.ledger().summary()["billed"]["output_tokens"]
        )
        assert run.summary().usage.cost_usd
        check_conserved(run, 4)

    @every_provider
    def test_a_line_that_is_missing(self, world: World, config: Any) -> None:
        """The row would be paid again, or its cost be zero."""
        world.sim.faults(kind="missing_line", rounds=1, match={"prompt": "number 1;"})
        run = world.run(4, provider_config=config(world.sim))
        assert statuses(run)["item-1"] == "results_lost"
        assert world.batches() == 1
        assert run.summary().usage.cost_usd is None
        assert run.results_frame().collect()["batch_cost_usd"].is_null().to_list()[1]
        check_conserved(run, 4)
