"""What goes wrong while answers are reused, or runs take each other's place."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import field_validator

from batchor_core import BatchItem
from batchor_core.errors import ArtifactUnavailableError
from batchor_core.model.policies import ChunkPolicy, ReusePolicy
from tests.core.world import Verdict, World, check_conserved, check_paid_once, items, statuses

NAMESPACE = ReusePolicy(source="namespace")
ONCE = ReusePolicy(source="off", within_run=True)


class Crash(BaseException):
    """The end of a process."""


class Moody(Verdict):
    """A model whose own rule may break down."""

    @field_validator("*")
    @classmethod
    def _look_up(cls, value: object) -> object:
        if Moody.is_broken:
            raise KeyError("the table of labels is gone")
        return value


Moody.is_broken = False  # type: ignore[attr-defined]


def outage_once(world: World, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Let the store of files be out of reach for one file whose path has this part."""
    artifacts = world.runner.artifacts
    local, left = artifacts.local, [1]

    @contextlib.contextmanager
    def flaky(reference: Any) -> Iterator[Path]:
        if part in reference.path and left[0]:
            left[0] -= 1
            raise ArtifactUnavailableError(f"{reference.path}: 503")
        with local(reference) as path:
            yield path

    monkeypatch.setattr(artifacts, "local", flaky)


def test_outage_is_no_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hiccup of an object store would cost all answers a second time."""
    world.run(3, run_id="first")
    outage_once(world, monkeypatch, "runs/first/")
    run = world.run(3, run_id="second", reuse=NAMESPACE)
    assert run.counts().reused == 3
    assert world.sim.ledger().executed() == 3


def test_outage_while_duplicates_are_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would fail although the row that asks the very same is answered."""
    rows = [BatchItem(item_id=f"item-{n}", payload=f"Prompt number {n % 2};") for n in range(6)]
    run = world.open(rows, reuse=ONCE)
    for _ in range(3):
        run.advance()
    outage_once(world, monkeypatch, "outcomes")
    run.wait()
    assert set(statuses(run).values()) == {"ok"}
    check_conserved(run, 6)


def test_model_that_breaks_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run could neither send nor end, because of a rule that old answers do not get through."""
    world.run(3, run_id="first", structured_output=Moody)
    monkeypatch.setattr(Moody, "is_broken", True)
    run = world.run(3, run_id="second", structured_output=Moody, reuse=NAMESPACE)
    assert set(statuses(run).values()) == {"invalid_output"}


def test_two_crashes_while_duplicates_are_held(world: World) -> None:
    """A question would be asked by nobody, and all rows that ask it fail."""
    questions = [1, 1, 2, 3, 2, 4]
    rows = [
        BatchItem(item_id=f"item-{n}", payload=f"Prompt number {question};")
        for n, question in enumerate(questions)
    ]
    job = world.job(rows, reuse=ONCE, chunk_policy=ChunkPolicy(max_requests=3))
    for _ in range(2):
        mortal = world.new_runner()
        split = mortal.store.split_chunk

        def split_and_die(*args: Any, _split: Any = split, **options: Any) -> None:
            _split(*args, **options)
            raise Crash

        mortal.store.split_chunk = split_and_die  # type: ignore[method-assign, assignment]
        with pytest.raises(Crash):
            mortal.run_and_wait(job, run_id="r")
        world.clock.sleep(200)
    run = world.runner.run_and_wait(job, run_id="r")
    assert set(statuses(run).values()) == {"ok"}
    assert world.sim.ledger().executed() == 4
    check_conserved(run, 6)


def test_lease_is_kept_while_earlier_runs_are_searched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would take a run from each other for ever, and neither get on."""
    world.run(12, run_id="first", chunk_policy=ChunkPolicy(max_requests=1))
    rows = [BatchItem(item_id=f"item-{n}", payload=f"New {n}") for n in range(3)]
    run = world.open(rows, run_id="second", reuse=NAMESPACE)
    run.ingest()
    other = world.new_runner()
    artifacts, taken = world.runner.artifacts, []
    local = artifacts.local

    @contextlib.contextmanager
    def slow(reference: Any) -> Iterator[Path]:
        world.clock.sleep(15)
        taken.append(other.store.acquire_lease("second", "somebody else", 120))
        with local(reference) as path:
            yield path

    monkeypatch.setattr(artifacts, "local", slow)
    run.advance()
    assert len(taken) > 12
    assert set(taken) == {None}


def changed(*numbers: int) -> list[BatchItem]:
    """Eight rows, of which some ask something else."""
    rows = items(8)
    for number in numbers:
        rows[number] = BatchItem(item_id=f"item-{number}", payload=f"Other {number} {numbers};")
    return rows


def test_chain_of_successors_pays_once(world: World) -> None:
    """What the first of three runs was answered would be paid for again by the third."""
    first = world.open(changed(), run_id="nightly")
    first.advance()
    first.advance()
    second = world.open(changed(1), run_id="nightly", on_change="supersede")
    second.ingest()
    third = world.open(changed(1, 2), run_id="nightly", on_change="supersede")
    world.sim.advance_time(200)
    third.wait()
    assert third.counts().reused == 6
    assert world.sim.ledger().executed() == 10
    check_conserved(third, 8)
    check_paid_once(world)


def test_chain_of_successors_works_one_after_the_other(world: World) -> None:
    """The third run's batches would work beside those of the first."""
    first = world.open(changed(), run_id="nightly")
    first.advance()
    first.advance()
    refused = {"kind": "http_error", "status": 503, "match": {"route": "batches.cancel"}}
    world.sim.faults(refused)
    second = world.open(changed(1), run_id="nightly", on_change="supersede")
    second.ingest()
    third = world.open(changed(1, 2), run_id="nightly", on_change="supersede")
    for _ in range(6):
        third.advance()
    assert world.batches() == 1
    world.sim.clear_faults()
    third.wait()
    assert (first.refresh().status, second.refresh().status) == ("cancelled", "cancelled")
    check_conserved(third, 8)
    check_paid_once(world)
