"""Runs of several members: rows of several partitions, in one run."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from batchor_core import BatchItem, ChunkPolicy, DuplicateItemIdError, SourceError
from batchor_core.ids import new_waiter_id
from batchor_core.model.records import Identity
from batchor_core.model.states import WaiterState
from batchor_core.run import Run
from batchor_core.sources.limited import LimitedItemSource
from batchor_core.sources.members import MemberItemSource, MemberRows
from batchor_core.sources.objects import source_of
from batchor_core.store.orchestration import MemberClaim, WaiterRequest
from tests.core.world import World

SIZES = {"a": 3, "b": 0, "c": 5, "d": 1}


def rows_of(name: str, count: int) -> pl.DataFrame:
    """Prompts that say whose they are."""
    return pl.DataFrame(
        {"prompt": [f"{name} row {n};" for n in range(count)]}, schema={"prompt": pl.String}
    )


def source(sizes: dict[str, int] = SIZES, **options: Any) -> MemberItemSource:
    """Several partitions, one after the other."""
    return MemberItemSource(
        [
            MemberRows(name=name, read=lambda name=name, n=count: rows_of(name, n))
            for name, count in sizes.items()
        ],
        **options,
    )


def ingested(world: World, sizes: dict[str, int] = SIZES, **options: Any) -> Run:
    """A run that has read them, and stands for them."""
    run = world.open(source(sizes), **options).ingest()
    claims = [
        MemberClaim(
            identity=Identity(namespace="default", asset="x", partition=name),
            fingerprint=fingerprint,
            item_count=count,
        )
        for name, (fingerprint, count) in zip(
            sizes, run.member_fingerprints(len(sizes)), strict=True
        )
    ]
    waiter = WaiterRequest(
        waiter_id=new_waiter_id(),
        namespace="default",
        asset="x",
        partitions=tuple(sizes),
        payload={},
    )
    world.runner.store.claim(run.run_id, claims, waiter)
    return run


def test_rows_come_back_by_member(world: World) -> None:
    """Partitions would get each other's rows, or lose those at the border of two batches."""
    run = ingested(world, chunk_policy=ChunkPolicy(max_requests=2))
    run.wait()
    with run.results_by_member() as results:
        for name, count in SIZES.items():
            table = results.frame(name).collect()
            assert table.columns == run.results_frame().collect_schema().names()
            assert table["item_id"].to_list() == [str(n) for n in range(count)]
            for number, text in enumerate(table["output_text"]):
                assert f"{name} row {number};" in text
            assert sum(part.num_rows for part in results.tables(name)) == count
            assert results.row_count(name) == count
        with pytest.raises(KeyError):
            results.frame("e")


def test_answers_are_counted_by_member(world: World) -> None:
    """A scheduler could not tell good partitions from bad ones without reading all results."""
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "c row 3;"}})
    run = ingested(world)
    run.wait()
    counts = {m.identity.partition: m.ok_count for m in world.runner.store.list_members(run.run_id)}
    assert counts == {"a": 3, "b": 0, "c": 4, "d": 1}


def test_fingerprint_does_not_depend_on_company(world: World) -> None:
    """A partition in flight would be asked again by whoever asks it in another range."""
    together = dict(zip(SIZES, ingested(world).member_fingerprints(4), strict=True))
    for name, count in SIZES.items():
        run = world.open(source({name: count}), run_id=f"run-{name}").ingest()
        assert run.member_fingerprints(1) == [together[name]]
        alone = world.open(rows_of(name, count), run_id=f"alone-{name}").ingest()
        assert alone.member_fingerprints(1) == [together[name]]


def test_ids_need_only_be_unique_in_a_member(world: World) -> None:
    """Every day could not number its rows from one."""
    ingested(world, {"a": 4, "b": 4})
    doubled = pl.DataFrame({"prompt": ["x", "y"], "id": ["1", "1"]})
    members = [MemberRows(name="a", read=lambda: doubled)]
    with pytest.raises(DuplicateItemIdError):
        world.open(MemberItemSource(members, "id"), run_id="doubled").ingest()


def test_members_are_read_one_after_the_other(world: World) -> None:
    """A thousand partitions would lie in memory at once."""
    opened: list[str] = []

    def rows(name: str) -> Iterator[BatchItem]:
        opened.append(name)
        yield BatchItem(item_id=name, payload=f"row of {name};")

    members = [MemberRows(name=n, read=lambda n=n: list(rows(n))) for n in "abc"]
    seen = [(len(opened), block.partitions) for block in MemberItemSource(members).blocks()]
    assert seen == [(1, [0]), (2, [1]), (3, [2])]


def test_missing_column_names_its_partition() -> None:
    """Nobody would know which of a thousand partitions lacks what the template names."""
    members = [
        MemberRows(name="a", read=lambda: pl.DataFrame({"text": ["x"], "more": ["y"]})),
        MemberRows(name="b", read=lambda: pl.DataFrame({"text": ["x"]})),
    ]
    with pytest.raises(SourceError, match="'b' lack column 'more'"):
        list(MemberItemSource(members).blocks())


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 99])
def test_first_rows(limit: int) -> None:
    """Trying a prompt out on a few rows would send more, or fewer, or tell nothing of the rest."""
    whole = source_of(rows_of("a", 5))
    limited = LimitedItemSource(whole, limit)
    assert sum(len(block) for block in limited.blocks()) == min(limit, 5)
    assert (limited.columns, limited.row_count) == (["prompt"], 5)


def want_only(world: World, run: Run, *names: str) -> None:
    """Somebody else wants some members; who wanted all of them gives up."""
    (first,) = world.runner.store.list_waiters(run_id=run.run_id)
    claims = [
        MemberClaim(identity=m.identity, fingerprint=m.fingerprint, item_count=m.item_count)
        for m in world.runner.store.list_members(run.run_id)
        if m.identity.partition in names
    ]
    waiter = WaiterRequest(
        waiter_id=new_waiter_id(), namespace="default", asset="x", partitions=names, payload={}
    )
    assert not world.runner.store.claim(run.run_id, claims, waiter).attached
    world.runner.store.end_waiter(first.waiter_id, WaiterState.CANCELLED, "gone")


def codes(run: Run) -> list[str | None]:
    """Error codes in order of the rows."""
    frame = run.results_frame().select("batch_error_code").collect()
    return list(frame["batch_error_code"])


def test_what_nobody_wants_is_not_sent(world: World) -> None:
    """A cancelled backfill would be paid for because somebody wants one of its days."""
    run = ingested(world, chunk_policy=ChunkPolicy(max_requests=2))
    want_only(world, run, "a")
    run.wait()
    assert world.sim.ledger().executed() == 4  # a's three rows, and c's first beside the last
    assert codes(run) == [None] * 4 + ["run_cancelled"] * 5
    assert run.status == "completed_with_failures"
    ok = {m.identity.partition: m.ok_count for m in world.runner.store.list_members(run.run_id)}
    assert ok == {"a": 3, "b": 0, "c": 1, "d": 0}


def test_what_nobody_wants_is_cancelled_in_flight(world: World) -> None:
    """The provider would go on working for nobody."""
    run = ingested(world, chunk_policy=ChunkPolicy(max_requests=3))
    run.advance()
    assert world.batches() == 3
    want_only(world, run, "a")
    run.advance()
    statuses = [b["status"] for b in world.sim.state.ledger_report()["batches"].values()]
    assert [status.startswith("cancel") for status in statuses] == [False, True, True]
    run.wait()
    assert world.sim.ledger().executed() == 3
    assert codes(run) == [None] * 3 + ["run_cancelled"] * 6


def test_what_nobody_wants_is_not_retried(world: World) -> None:
    """Failed rows of a cancelled backfill would be sent again and again."""
    fault = {"kind": "line_error", "status": 503, "rounds": 1}
    for name in ("a row 1;", "c row 1;", "c row 4;"):
        world.sim.faults({**fault, "match": {"prompt": name}})
    run = ingested(world)
    run.advance()
    want_only(world, run, "a")
    run.wait()
    assert world.sim.ledger().executed() == 7  # without the two of c that failed at first
    assert [c is None for c in codes(run)] == [
        True,
        True,
        True,
        True,
        False,
        True,
        True,
        False,
        True,
    ]


def test_a_member_that_nobody_wants_is_asked_anew_by_who_does(world: World) -> None:
    """Its rows would be lost with the run that gave them up, or paid for twice."""
    run = ingested(world, chunk_policy=ChunkPolicy(max_requests=3))
    run.advance()
    want_only(world, run, "a")
    again = world.open(source({"c": 5}), run_id="again").ingest()
    claim = MemberClaim(
        identity=Identity(namespace="default", asset="x", partition="c"),
        fingerprint=again.member_fingerprints(1)[0][0],
        item_count=5,
    )
    waiter = WaiterRequest(
        waiter_id=new_waiter_id(), namespace="default", asset="x", partitions=("c",), payload={}
    )
    result = world.runner.store.claim("again", [claim], waiter, supersede=True)
    assert result.superseded == run.run_id
    again = world.runner.get_run("again")
    again.wait()
    assert again.counts().ok == 5
    assert world.sim.ledger().paid_twice() == []
