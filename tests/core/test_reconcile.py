"""A store that was restored from a backup learns again what was sent after it."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchor_core import BatchRunner, ChunkPolicy, RunState
from batchor_core.errors import ConfigurationError
from batchor_core.executor.reconcile import Finding
from batchor_core.ids import SubmissionKey, parse_submission_key
from tests.core.test_every_provider import every_provider
from tests.core.world import World, Worlds, check_conserved, check_paid_once


def _backup(world: World, to: Path) -> None:
    """Copy the store's file as a backup would: with nobody at it."""
    world.runner.store.close()
    shutil.copy(world.db, to)


def _restored(world: World, backup: Path) -> BatchRunner:
    for name in world.folder.glob("state.sqlite3*"):
        name.unlink()
    shutil.copy(backup, world.db)
    return world.new_runner()


@pytest.fixture
def restored(world: World, tmp_path: Path) -> tuple[World, BatchRunner]:
    """A run of two chunks, backed up before it was sent and restored after."""
    run = world.open(4, chunk_policy=ChunkPolicy(max_requests=2))
    run.ingest()
    backup = tmp_path / "backup.sqlite3"
    _backup(world, backup)
    run.advance()
    assert world.batches() == 2
    world.clock.sleep(300)  # the lease of whoever held it before the backup is over
    return world, _restored(world, backup)


def test_batches_sent_after_the_backup_are_adopted(restored: tuple[World, BatchRunner]) -> None:
    """Every batch that the backup does not know would be created, and paid for, again."""
    world, runner = restored
    run = runner.open(world.job(4, chunk_policy=ChunkPolicy(max_requests=2)), run_id="run-1")
    findings = [each.finding for each in runner.reconcile()]

    assert findings == [Finding.ADOPTED, Finding.ADOPTED]
    assert run.wait().status is RunState.SUCCEEDED
    assert world.batches() == 2
    check_conserved(run, 4)
    check_paid_once(world)


def test_dry_run_changes_nothing(restored: tuple[World, BatchRunner]) -> None:
    """Who only wants to look would change the store, or cancel batches."""
    world, runner = restored
    runner.open(world.job(4, chunk_policy=ChunkPolicy(max_requests=2)), run_id="run-1")
    first = list(runner.reconcile(is_dry=True))
    assert [each.finding for each in first] == [Finding.ADOPTED] * 2
    assert runner.store.counts("run-1").ready == 4


def test_reconciling_twice_finds_everything_known(restored: tuple[World, BatchRunner]) -> None:
    """A nervous operator would do harm with the second call."""
    world, runner = restored
    runner.open(world.job(4, chunk_policy=ChunkPolicy(max_requests=2)), run_id="run-1")
    list(runner.reconcile())
    assert {each.finding for each in runner.reconcile()} == {Finding.KNOWN}


def test_twins_are_cancelled_and_strangers_left_alone(world: World) -> None:
    """Twins would be paid for; other people's batches would be cancelled."""
    run = world.open(2)
    run.advance()
    (chunk,) = world.runner.store.list_chunks("run-1")
    provider = run.plan.provider
    twin = SubmissionKey(
        run_id="run-1",
        chunk_seq=0,
        chunk_token=chunk.token,
        submission_id="sub_twin",
        store_id=world.runner.store.store_id,
    )
    another = replace(twin, store_id="store_another")
    request = world.folder / "twin.jsonl"
    request.write_bytes(run.plan.encoder.line("x-0", b'{"model":"m","input":"x"}'))
    for key in (str(twin), str(another), "somebody/else", str(twin).replace("run-1", "unknown")):
        upload = provider.upload(request, key="twin")
        provider.create(upload_ref=upload.ref, path=request, key=key, tags={}, timeout_s=9)

    findings = {each.key: each.finding for each in world.runner.reconcile()}
    assert findings.pop(str(twin)) is Finding.CANCELLED
    assert findings.pop(str(another)) is Finding.FOREIGN
    assert findings.pop("somebody/else") is Finding.FOREIGN
    assert findings.pop(str(twin).replace("run-1", "unknown")) is Finding.FOREIGN
    assert list(findings.values()) == [Finding.KNOWN]


def test_chunk_that_is_another_one_now_is_not_adopted(world: World) -> None:
    """Answers to the rows of another chunk would be taken for this one's, and all be missing."""
    run = world.open(2)
    run.ingest()
    (chunk,) = world.runner.store.list_chunks("run-1")
    key = SubmissionKey(
        run_id="run-1",
        chunk_seq=0,
        chunk_token="another2",
        submission_id="sub_lost",
        store_id=world.runner.store.store_id,
    )
    assert chunk.token != key.chunk_token
    request = world.folder / "lost.jsonl"
    request.write_bytes(run.plan.encoder.line("another2-0", b'{"model":"m","input":"x"}'))
    provider = run.plan.provider
    upload = provider.upload(request, key="lost")
    provider.create(upload_ref=upload.ref, path=request, key=str(key), tags={}, timeout_s=9)

    assert [each.finding for each in world.runner.reconcile()] == [Finding.CANCELLED]
    assert run.wait().status is RunState.SUCCEEDED


@pytest.mark.parametrize("run_id", ["r", "a/b", "with spaces", "ü/0-abc/sub_x", "x" * 200])
def test_keys_survive_the_round_trip(run_id: str) -> None:
    """A batch would be put back under another run, or under none."""
    key = SubmissionKey(
        run_id=run_id,
        chunk_seq=7,
        chunk_token="abcdefgh",
        submission_id="sub_y",
        store_id="store_z",
    )
    assert parse_submission_key(str(key)) == key
    assert parse_submission_key("run/0/sub_x") is None
    assert parse_submission_key(None) is None


@every_provider
def test_stores_that_share_an_account_leave_each_other_alone(worlds: Worlds, config: Any) -> None:
    """Two laptops, or staging and production, would cancel each other's batches."""
    mine = worlds()
    runs = []
    for name in ("mine", "theirs"):
        mine.db = mine.folder / f"{name}.sqlite3"
        mine.artifacts = mine.folder / name
        runner = mine.new_runner()
        job = mine.job(4, provider_config=config(mine.sim))
        runs.append((runner, runner.open(job, run_id="run-1")))
        runs[-1][1].advance()
    for runner, _ in runs:
        found = Counter(each.finding for each in runner.reconcile())
        assert found == {Finding.KNOWN: 1, Finding.FOREIGN: 1}
    for _, run in runs:
        assert run.wait().status == "succeeded"
        check_conserved(run, 4)
    assert mine.batches() == 2


def test_a_lost_store_is_noticed(world: World) -> None:
    """The same start would buy everything again without a word."""
    world.open(4).advance()
    world.db = world.folder / "lost.sqlite3"
    with pytest.raises(ConfigurationError, match="Restore the store from a backup"):
        world.new_runner().open(world.job(4), run_id="run-1")
    assert world.batches() == 1
