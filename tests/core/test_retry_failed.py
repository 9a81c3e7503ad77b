"""Asking the failed items of a finished run again, in a run of their own."""

from typing import Any

import msgspec
import polars as pl
import pytest

from batchor_core import BatchItem, NothingToRetryError, Run
from batchor_core.errors import (
    ArtifactPrunedError,
    ConfigurationError,
    FingerprintMismatchError,
    PruneRefusedError,
    RunError,
    RunNotFinishedError,
)
from batchor_core.model.policies import ChunkPolicy, RetryPolicy
from tests.core.world import Verdict, World, check_paid_once, statuses

ONCE = RetryPolicy(max_attempts=1, delay_s=1)
TWOS = ChunkPolicy(max_requests=2)
EMBEDDINGS = {"endpoint": "embeddings", "model": "text-embedding-3-small", "dimensions": 8}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")  # other processes take it from there


def fail(world: World, *numbers: int, status: int = 500) -> None:
    """Let these items fail from now on, and no others."""
    world.sim.clear_faults()
    for number in numbers:
        prompt = {"prompt": f"number {number};"}
        world.sim.faults(kind="line_error", status=status, match=prompt)


def failed_run(world: World, *numbers: int, rows: Any = 6, **options: Any) -> Run:
    """A finished run in which these items failed; the provider is well again."""
    fail(world, *numbers)
    run = world.run(rows, **{"retry_policy": ONCE, **options})
    assert run.counts().failed == len(numbers)
    world.sim.clear_faults()
    return run


def test_failed_items_alone_are_asked_again(world: World) -> None:
    """Good answers would be paid for a second time, or failed ones not be asked."""
    run = failed_run(world, 1, 4)
    retry = run.retry_failed()
    assert (retry.run_id, retry.record.retry_of) == ("run-1.retry-1", "run-1")
    assert retry.counts().ready == 2
    retry.wait()
    assert statuses(retry) == {"item-1": "ok", "item-4": "ok"}
    assert retry.results_frame().collect()["item_id"].to_list() == ["item-1", "item-4"]
    assert world.sim.ledger().executed() == 6
    check_paid_once(world)


def test_items_keep_all_that_they_came_with(world: World) -> None:
    """Without its source a retry would lose metadata and kept columns, or the prompts' text."""
    rows = [
        BatchItem(
            item_id=f"key-{n}",
            payload={"text": f"Prompt number {n};", "topic": f"t{n}"},
            metadata={"n": n},
        )
        for n in range(4)
    ]
    run = failed_run(
        world,
        2,
        rows=rows,
        prompt_template="{text}",
        keep={"topic": str},
        structured_output=Verdict,
    )
    again = world.new_runner().get_run("run-1").retry_failed()
    again.wait()
    (item,) = again.results()
    assert (item.item_id, item.metadata, item.attempt_count) == ("key-2", {"n": 2}, 1)
    assert isinstance(item.output, Verdict)
    assert again.results_frame().collect()["topic"].to_list() == ["t2"]
    assert run.results_frame(combined=True).collect()["topic"].to_list() == ["t0", "t1", "t2", "t3"]


def test_combined_results_are_in_input_order_with_sums(world: World) -> None:
    """A reader would see old failures, or a cost that leaves out what the retry cost."""
    run = failed_run(world, 1, 3, chunk_policy=TWOS)
    first = run.results_frame().collect()
    retry = run.retry_failed().wait()
    second = retry.results_frame().collect()
    both = run.results_frame(combined=True).collect()
    assert both.schema == first.schema
    assert both["item_id"].to_list() == [f"item-{n}" for n in range(6)]
    assert set(both["batch_status"]) == {"ok"}
    assert both["batch_attempts"].to_list() == [1, 2, 1, 2, 1, 1]
    for name in ("batch_input_tokens", "batch_output_tokens", "batch_cost_usd"):
        assert both[name].sum() == pytest.approx(first[name].sum() + second[name].sum())
    assert run.results_frame().collect().equals(first)


def test_combined_export(world: World, tmp_path: Any) -> None:
    """The table for other tools would lack what the retry has answered."""
    run = failed_run(world, 5)
    run.retry_failed().wait()
    path = str(tmp_path / "all.parquet")
    assert run.export_terminal_results(path, combined=True) == 6
    assert set(pl.read_parquet(path)["batch_status"]) == {"ok"}


def test_what_fails_again_is_retried_from_the_retry(world: World) -> None:
    """The second retry would ask everything again that the first one has answered."""
    run = failed_run(world, 1, 2, 3)
    fail(world, 2)
    first = run.retry_failed().wait()
    assert first.counts().failed == 1
    with pytest.raises(NothingToRetryError, match=r"'run-1\.retry-1' has taken them"):
        run.retry_failed()
    world.sim.clear_faults()
    second = first.retry_failed()
    assert second.run_id == "run-1.retry-1.retry-1"
    second.wait()
    table = run.results_frame(combined=True).collect()
    assert table["batch_attempts"].to_list() == [1, 2, 3, 2, 1, 1]
    assert set(table["batch_status"]) == {"ok"}
    check_paid_once(world)


def test_only_some_error_codes(world: World) -> None:
    """Failures that a retry cannot mend would be paid for with those that it can."""
    world.sim.faults(kind="line_error", status=400, match={"prompt": "number 0;"})
    world.sim.faults(kind="line_error", status=500, match={"prompt": "number 5;"})
    run = world.run(retry_policy=ONCE)
    codes = statuses(run)
    world.sim.clear_faults()
    only = run.retry_failed(codes=[codes["item-5"]]).wait()
    assert statuses(only) == {"item-5": "ok"}
    rest = run.retry_failed().wait()
    assert (rest.run_id, statuses(rest)) == ("run-1.retry-2", {"item-0": "ok"})
    assert set(run.results_frame(combined=True).collect()["batch_status"]) == {"ok"}


def test_cancelled_items_are_asked_only_by_name(world: World) -> None:
    """Somebody who cancelled a run would find its rows sent by a retry of something else."""
    run = world.open()
    run.ingest().cancel()
    run.wait()
    with pytest.raises(NothingToRetryError, match="run_cancelled are taken only if"):
        run.retry_failed()
    retry = run.retry_failed(codes=["run_cancelled"]).wait()
    assert set(statuses(retry).values()) == {"ok"}
    assert len(retry.results()) == 6


def test_without_failures_or_before_the_end(world: World) -> None:
    """An empty run would be opened, or items be asked that are still in flight."""
    run = world.open()
    run.advance()
    with pytest.raises(RunNotFinishedError):
        run.retry_failed()
    run.wait()
    with pytest.raises(NothingToRetryError, match="has no failed item"):
        run.retry_failed()
    assert [r.run_id for r in world.runner.list_runs()] == ["run-1"]


@pytest.mark.parametrize("probe", ["ingest.sealed", "ingest.committed", "ingest.finished"])
def test_a_crash_on_the_way_is_gone_on_with(world: World, probe: str) -> None:
    """Items would be left out, or asked twice, by a retry that was killed while it was filled."""
    failed_run(world, *range(7), rows=8, chunk_policy=TWOS)
    crashing = world.new_runner(probe=_raise_at(probe, skip=1 if probe != "ingest.finished" else 0))
    with pytest.raises(_StopError):
        crashing.get_run("run-1").retry_failed()
    crashing.close()
    world.clock.sleep(130)
    runner = world.new_runner()
    run = runner.get_run("run-1")
    retry = run.retry_failed()
    assert retry.run_id == "run-1.retry-1"
    retry.wait()
    assert statuses(retry) == {f"item-{n}": "ok" for n in range(7)}
    assert run.results_frame(combined=True).collect()["batch_attempts"].sum() == 8 + 7
    check_paid_once(world)


def test_any_process_fills_a_retry_that_nobody_asks_for_again(world: World) -> None:
    """A half-filled retry would wait for a source that it does not have."""
    failed_run(world, *range(5), chunk_policy=TWOS)
    crashing = world.new_runner(probe=_raise_at("ingest.committed"))
    with pytest.raises(_StopError):
        crashing.get_run("run-1").retry_failed(run_id="again")
    crashing.close()
    world.clock.sleep(130)
    retry = world.new_runner().get_run("again").wait()
    assert statuses(retry) == {f"item-{n}": "ok" for n in range(5)}


def test_two_retries_at_once_do_not_share_items(world: World) -> None:
    """Two people who retry at the same time would pay for each item twice."""
    run = failed_run(world, 1, 2, 3, chunk_policy=TWOS)
    crashing = world.new_runner(probe=_raise_at("ingest.committed"))
    with pytest.raises(_StopError):
        crashing.get_run("run-1").retry_failed(run_id="mine")
    with pytest.raises(RunError, match="'mine' is just taking failed items"):
        run.retry_failed(run_id="yours")
    with pytest.raises(RunError, match="is another"):
        run.retry_failed(run_id="mine", codes=["server_error"])
    with pytest.raises(PruneRefusedError, match="'mine' still reads the files"):
        run.prune_artifacts(["requests"])


def test_the_same_call_goes_on_with_its_retry(world: World) -> None:
    """A command that was interrupted and repeated would open a second retry, or refuse."""
    run = failed_run(world, 1)
    first = run.retry_failed()
    assert run.retry_failed().run_id == first.run_id
    named = run.retry_failed(run_id=first.run_id)
    named.wait()
    assert len(world.runner.store.retries_of("run-1")) == 1


def test_combined_results_wait_for_the_retry(world: World) -> None:
    """A table would be taken for the last word while answers are still on their way."""
    run = failed_run(world, 1)
    retry = run.retry_failed()
    with pytest.raises(RunNotFinishedError, match=r"'run-1\.retry-1', which asks failed items"):
        run.results_frame(combined=True)
    retry.wait()
    assert run.results_frame(combined=True).collect().height == 6


def test_a_job_of_the_same_id_attaches_to_the_run_and_not_to_its_retry(world: World) -> None:
    """A script that is run again would be refused because somebody has retried its failures."""
    failed_run(world, 1).retry_failed().wait()
    assert world.open(retry_policy=ONCE).run_id == "run-1"
    with pytest.raises(FingerprintMismatchError, match="asks failed items of run 'run-1'"):
        world.open(run_id="run-1.retry-1")


def test_a_budget_holds_for_the_retry_too(world: World) -> None:
    """A run with a bound could cost any sum by being retried."""
    run = failed_run(world, 1, budget_usd=3.0)
    assert run.retry_failed().record.budget_usd == 3.0


def test_pruned_requests_cannot_be_asked_again(world: World) -> None:
    """Files that were removed on purpose would be reported as lost."""
    run = failed_run(world, 1)
    run.prune_artifacts(["requests"])
    with pytest.raises(ArtifactPrunedError, match="requests files of run 'run-1' were pruned"):
        run.retry_failed()


def test_an_overlong_id_is_refused(world: World) -> None:
    """The provider would refuse each batch of the retry."""
    with pytest.raises(ConfigurationError, match="201 characters"):
        failed_run(world, 1).retry_failed(run_id="x" * 201)


def test_embeddings_get_a_request_each(world: World) -> None:
    """One input that the provider refuses would fail its neighbours a second time."""
    world.sim.faults(kind="line_error", status=400)
    run = world.run(3, config=EMBEDDINGS, retry_policy=ONCE)
    assert run.counts().failed == 3
    world.sim.clear_faults()
    retry = run.retry_failed().wait()
    (chunk,) = world.runner.store.list_chunks(retry.run_id)
    with world.runner.artifacts.local(chunk.requests) as path:
        lines = path.read_bytes().splitlines()
    inputs = [msgspec.json.decode(line)["body"]["input"] for line in lines]
    assert inputs == [[f"Prompt number {n};"] for n in range(3)]
    assert [len(item.output) for item in retry.results()] == [8, 8, 8]
    assert [item.status for item in retry.results()] == ["ok"] * 3
    assert run.results_frame(combined=True).collect()["embedding"].null_count() == 0


class _StopError(Exception):
    pass


def _raise_at(wanted: str, *, skip: int = 0) -> Any:
    """A probe that dies at the place where it is called for the (skip + 1)th time."""
    left = [skip]

    def probe(name: str) -> None:
        if name == wanted:
            left[0] -= 1
            if left[0] < 0:
                raise _StopError(name)

    return probe
