"""Each state of a submission, at each place of the executor that asks whether something is open."""

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import batchor_core
from batchor_core.executor.advance import _may_collect_more
from batchor_core.executor.due import is_settled
from batchor_core.executor.reuse import _is_anything_open
from batchor_core.model.states import (
    QUEUED_SUBMISSION_STATES,
    UNCOLLECTED_SUBMISSION_STATES,
    RunControlState,
    SubmissionState,
)
from batchor_core.store.sql.store import SQLiteStorage
from batchor_core.store.sql.tables import submissions
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver

SETS = {"QUEUED_SUBMISSION_STATES", "UNCOLLECTED_SUBMISSION_STATES"}
MODULES = {
    "executor/advance.py": "UNCOLLECTED_SUBMISSION_STATES",
    "executor/due.py": "UNCOLLECTED_SUBMISSION_STATES",
    "executor/reuse.py": "UNCOLLECTED_SUBMISSION_STATES",
    "store/sql/budgets.py": "UNCOLLECTED_SUBMISSION_STATES",
    "store/sql/open_work.py": "QUEUED_SUBMISSION_STATES UNCOLLECTED_SUBMISSION_STATES",
    "store/sql/scopes.py": "QUEUED_SUBMISSION_STATES",
}
"""Who uses which set; the store's are tested by its contract, the executor's below."""


@pytest.fixture
def driver() -> Iterator[RunDriver]:
    """A run in an empty store."""
    clock = ManualClock()
    with SQLiteStorage.in_memory(clock=clock) as store:
        yield RunDriver(store, clock)


def cycle(driver: RunDriver) -> Any:
    """What the places below look at of a cycle; all files are there."""
    return SimpleNamespace(
        run=driver.store.get_run("run_a"),
        store=driver.store,
        keeper=SimpleNamespace(keep=lambda: None),
        artifacts=SimpleNamespace(local=nullcontext),
    )


USERS: dict[str, Callable[[RunDriver], bool]] = {
    "finish": lambda driver: not is_settled(driver.store.open_work("run_a")),
    "reuse": lambda driver: _is_anything_open(cycle(driver)),
    "local error": lambda driver: _may_collect_more(cycle(driver)),
}


@pytest.mark.parametrize("state", list(SubmissionState))
@pytest.mark.parametrize("user", list(USERS))
def test_what_may_still_answer_is_open(
    driver: RunDriver, user: str, state: SubmissionState
) -> None:
    """A run would be closed over answers that were paid for, or wait for none for ever."""
    driver.bring(driver.seal(1), state)
    driver.store.finish_ingestion(driver.lease, "f")
    driver.store.set_control("run_a", RunControlState.CANCEL, "user")
    assert USERS[user](driver) is (state in UNCOLLECTED_SUBMISSION_STATES)


def test_the_sets_are_what_they_say() -> None:
    """A state would be forgotten in both, or be queued at the provider and cost nothing."""
    never_asked = {SubmissionState.COLLECTED, SubmissionState.VOID}
    assert set(SubmissionState) - never_asked == UNCOLLECTED_SUBMISSION_STATES
    assert {SubmissionState.ENDED} == UNCOLLECTED_SUBMISSION_STATES - QUEUED_SUBMISSION_STATES


def test_every_user_of_the_sets_is_tested() -> None:
    """A new place could take the wrong set, and no test would see it."""
    root = Path(batchor_core.__path__[0])
    found = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name == "model/states.py" or name.startswith("testing/"):
            continue
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        if names & SETS:
            found[name] = " ".join(sorted(names & SETS))
    assert found == MODULES


def test_one_submission_of_a_chunk_may_be_uncollected() -> None:
    """The index that keeps a chunk from being paid twice would leave out a state."""
    (index,) = [i for i in submissions.indexes if i.name == "uq_batchor_submissions_live_chunk"]
    for dialect in ("sqlite", "postgresql"):
        where = str(index.dialect_options[dialect]["where"])
        assert set(re.findall(r"'(\w+)'", where)) == UNCOLLECTED_SUBMISSION_STATES
