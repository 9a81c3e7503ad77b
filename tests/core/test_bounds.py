"""What a run costs at most when the provider will not do as it is asked.

That an expired batch has exactly its rest sent again is in ``test_retries.py``.
"""

from collections import Counter
from pathlib import Path

import pytest

from batchor_core import BatchRunner
from batchor_core.model.policies import ChunkPolicy
from batchor_core.simulator import Simulator, SimulatorOptions
from tests.core.killing import LONGEST_END_S, Command
from tests.core.world import World, Worlds, check_conserved, check_paid_once

ROWS = 40


def test_a_batch_that_always_fails_ends_the_command_with_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that can never succeed would be sent for ever, or pass for a success."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with Simulator(SimulatorOptions(batch_seconds=0.1)) as simulator:
        simulator.faults(kind="fail_batch")
        command = Command(
            folder=tmp_path,
            target=str(tmp_path / "state.sqlite3"),
            base_url=simulator.openai_base_url,
            max_rounds=3,
        )
        command.write_input(4)
        process = command.spawn()
        process.join(LONGEST_END_S)
        assert process.exitcode == 3, command.output.read_text()
        process.close()
        assert len(simulator.state.ledger_report()["batches"]) == 3
        assert simulator.ledger().executed() == 0
    with BatchRunner(command.target, tmp_path / "artifacts") as runner:
        run = runner.get_run("run-1")
        check_conserved(run, 4)
        assert Counter(str((r.error or {})["code"]) for r in run.results()) == {"batch_rejected": 4}


@pytest.mark.parametrize(
    ("tokens_in_queue", "rows_in_chunk", "minimum"),  # a row is estimated at 18 to 20 tokens
    [
        pytest.param(100, 5, 8, id="one chunk at a time"),
        pytest.param(240, 5, 8, id="two chunks at a time"),
        pytest.param(200, None, 4, id="the only chunk is four times as large"),
        pytest.param(30, None, 40, id="one row at a time"),
    ],
)
def test_a_queue_smaller_than_the_job(
    worlds: Worlds, tokens_in_queue: int, rows_in_chunk: int | None, minimum: int
) -> None:
    """Rows would fail, use up attempts, or the provider be asked over and over for room."""
    world = worlds(enqueued_token_limit=tokens_in_queue)
    run = world.run(ROWS, chunk_policy=ChunkPolicy(max_requests=rows_in_chunk))
    assert run.status == "succeeded"
    assert {r.attempt_count for r in run.results()} == {1}
    assert world.batches() <= 2 * minimum
    check_conserved(run, ROWS)
    check_paid_once(world)


def test_a_short_download_of_an_expired_batch_is_repeated(world: World) -> None:
    """Answers that an expired batch has given would pass for not executed, and be paid again."""
    world.sim.faults(kind="expire", fraction=0.6, times=1)
    world.sim.faults(
        kind="truncate_download", with_length=False, times=1, match={"route": "files.content"}
    )
    run = world.run(10)
    assert run.status == "succeeded"
    assert list(world.sim.ledger().executed_by_batch().values()) == [6, 4]
    check_paid_once(world)
    check_conserved(run, 10)
