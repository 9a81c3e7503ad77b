"""`kill -9` in the middle: the same command again finishes, and nothing is paid twice."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from batchor_core.model.states import RunState, SubmissionState
from batchor_core.store.sql import SQLiteStorage
from tests.cli.commands import Shell, until

HANG = {"kind": "hang", "seconds": 30}


def _ingested(shell: Shell, store: SQLiteStorage) -> bool:
    return bool(store.list_submissions("r"))


def _created(shell: Shell, store: SQLiteStorage) -> bool:
    return len(shell.at_provider("batches")) == 1


def _in_flight(shell: Shell, store: SQLiteStorage) -> bool:
    return len(store.list_submissions("r", states=[SubmissionState.ACTIVE])) == 2


def _collecting(shell: Shell, store: SQLiteStorage) -> bool:
    ended = store.list_submissions("r", states=[SubmissionState.ENDED])
    return bool(ended) and store.lease_of("r") is not None


@pytest.mark.crash
@pytest.mark.parametrize(
    ("fault", "reached"),
    [
        pytest.param({**HANG, "match": {"route": "files.create"}}, _ingested, id="ingested"),
        pytest.param(
            {**HANG, "match": {"route": "batches.create"}, "after_commit": True},
            _created,
            id="created but not acknowledged",
        ),
        pytest.param(None, _in_flight, id="in flight"),
        pytest.param({**HANG, "match": {"route": "files.content"}}, _collecting, id="collecting"),
    ],
)
def test_a_killed_command_goes_on_and_no_request_is_paid_twice(
    shells: Callable[..., Shell],
    fault: dict[str, Any] | None,
    reached: Callable[[Shell, SQLiteStorage], bool],
) -> None:
    """A power cut would lose rows, or double the bill."""
    shell = shells(batch_seconds=1)
    if fault:
        shell.sim.faults(fault)
    command = shell.start(
        *("--run-id", "r", "--wait", "--json", "--chunk-max-requests", "2"),
        *("--lease-seconds", "3", "--settle-seconds", "1"),
    )
    with shell.spawn(*command) as process:
        until(lambda: shell.db.exists() and shell.db.stat().st_size)
        with shell.store() as store:
            until(lambda: _is_known(store) and reached(shell, store))
            assert store.get_run("r").state is RunState.RUNNING
            process.kill()
    shell.sim.clear_faults()
    again = shell.run(*command)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["counts"]["ok"] == 3
    ledger = shell.sim.ledger()
    assert (ledger.executed(), ledger.distinct(), ledger.paid_twice()) == (3, 3, [])
    rows = shell.ok(*shell.on("results")).stdout.splitlines()
    assert [json.loads(row)["item_id"] for row in rows] == ["a", "b", "c"]


@pytest.mark.crash
def test_a_killed_start_without_wait_sends_when_it_is_repeated(
    shells: Callable[..., Shell],
) -> None:
    """The dead process's lease would let the repeated command end without having sent anything."""
    shell = shells(batch_seconds=60)
    shell.sim.faults({**HANG, "match": {"route": "files.create"}})
    command = shell.start("--run-id", "r", "--lease-seconds", "2", "--settle-seconds", "0")
    with shell.spawn(*command) as process:
        until(lambda: shell.db.exists() and shell.db.stat().st_size)
        with shell.store() as store:
            until(lambda: _is_known(store) and _ingested(shell, store))
            process.kill()
    shell.sim.clear_faults()
    assert shell.json(*command)["counts"]["in_flight"] == 3
    assert len(shell.at_provider("batches")) == 1


def _is_known(store: SQLiteStorage) -> bool:
    return bool(store.list_runs())
