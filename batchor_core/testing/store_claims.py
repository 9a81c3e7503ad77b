"""The store's contract about members and waiters."""

import pytest

from batchor_core.errors import RunNotFoundError, StaleTransitionError, StoreError
from batchor_core.model.states import RunControlState, RunState, WaiterState
from batchor_core.store.orchestration import ClaimResult, MemberClaim, OrchestratorStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    RunDriver,
    identity,
    member,
    new_run,
    waiter_request,
)


class ClaimContract:
    """What every store promises about claims."""

    def test_free_identities_are_opened(self, store: OrchestratorStore) -> None:
        """A run would not stand for what it was started for."""
        store.create_run(new_run())
        claims = [member("b", "f2", 2), member("a", "f1", 1)]
        result = store.claim("run_a", claims, waiter_request("b", "a", waiter_id="w1"))
        assert result == ClaimResult(run_id="run_a", attached=False)
        listed = store.list_members("run_a")
        assert [(m.seq, m.identity.partition, m.item_count) for m in listed] == [
            (0, "b", 2),
            (1, "a", 1),
        ]
        assert all(m.is_open for m in listed)
        waiter = store.get_waiter("w1")
        assert (waiter.run_id, waiter.partitions) == ("run_a", ("b", "a"))
        assert (waiter.state, waiter.payload) == (WaiterState.OPEN, {"root": "r"})

    def test_equal_fingerprint_attaches(self, store: OrchestratorStore) -> None:
        """The same partition asked for twice would be paid for twice."""
        store.create_run(new_run("run_a"))
        store.create_run(new_run("run_b"))
        store.claim("run_a", [member("a"), member("b")], waiter_request("a", "b"))
        result = store.claim("run_b", [member("b")], waiter_request("b", waiter_id="w2"))
        assert result == ClaimResult(run_id="run_a", attached=True)
        assert store.get_waiter("w2").run_id == "run_a"
        own = store.get_run("run_b")
        assert (own.control, own.control_reason) == (RunControlState.CANCEL, "attached")
        assert store.get_run("run_a").control is RunControlState.RUN
        assert store.list_members("run_b") == []

    def test_undelivered_results_attract(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Results that nobody fetched yet would be paid for again."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member("a")], waiter_request("a"))
        driver.close()
        store.create_run(new_run("run_b"))
        assert store.claim("run_b", [member("a")], waiter_request("a")).attached

    def test_changed_rows_conflict(self, store: OrchestratorStore) -> None:
        """One identity would have two open runs, or a refused claim would leave traces."""
        for name in ("run_a", "run_b"):
            store.create_run(new_run(name))
        store.claim("run_a", [member("a"), member("b")], waiter_request("a", "b"))
        result = store.claim("run_b", [member("a", "changed")], waiter_request("a", waiter_id="w2"))
        assert result == ClaimResult(run_id="run_a", attached=False, conflict=(identity("a"),))
        self._check_untouched(store)

    @pytest.mark.parametrize(
        ("claims", "groups"),
        [
            ([member("a"), member("free")], [["a"], ["free"]]),
            ([member("b"), member("c")], [["b"], ["c"]]),
            ([member("a"), member("c", "changed"), member("b")], [["a", "b"], ["c"]]),
            ([member("a"), member("b", "changed")], [["a"], ["b"]]),
        ],
        ids=["partly-free", "two-runs", "one-run-changed", "one-member-changed"],
    )
    def test_unlike_identities_come_in_groups(
        self, store: OrchestratorStore, claims: list[MemberClaim], groups: list[list[str]]
    ) -> None:
        """A request over many partitions could not tell which of them go together."""
        for name in ("run_a", "run_b", "run_c"):
            store.create_run(new_run(name))
        store.claim("run_a", [member("a"), member("b")], waiter_request("a", "b"))
        store.claim("run_c", [member("c")], waiter_request("c"))
        request = waiter_request("a", waiter_id="w2")
        result = store.claim("run_b", claims, request, supersede=True)
        assert [[i.partition for i in group] for group in result.groups] == groups
        assert (result.run_id, result.attached) == ("run_b", False)
        self._check_untouched(store)

    def _check_untouched(self, store: OrchestratorStore) -> None:
        assert store.get_run("run_b").control is RunControlState.RUN
        assert store.list_members("run_b") == []
        with pytest.raises(StoreError, match="w2"):
            store.get_waiter("w2")

    def test_one_member_is_superseded(self, store: OrchestratorStore) -> None:
        """A changed partition would take all others of its batch run down with it."""
        for name in ("run_a", "run_b"):
            store.create_run(new_run(name))
        names = ("a", "b", "c")
        request = waiter_request(*names, waiter_id="w1")
        store.claim("run_a", [member(name) for name in names], request)
        only_b = waiter_request("b", waiter_id="w2")
        store.claim("run_a", [member("b")], only_b)
        result = store.claim(
            "run_b", [member("b", "new")], waiter_request("b", waiter_id="w3"), supersede=True
        )
        assert result == ClaimResult(run_id="run_b", attached=False, superseded="run_a")
        assert store.get_run("run_a").control is RunControlState.RUN
        assert store.get_run("run_b").predecessor == "run_a"
        assert [m.is_open for m in store.list_members("run_a")] == [True, False, True]
        assert store.get_waiter("w1").partitions == ("a", "c")
        assert store.get_waiter("w2").run_id == "run_b"
        waiting = store.list_waiters(run_id="run_b")
        assert [(w.partitions, w.payload) for w in waiting] == [(("b",), {"root": "r"})] * 3

    def test_last_members_end_their_run(self, store: OrchestratorStore) -> None:
        """A run that stands for nothing any more would go on spending money."""
        for name in ("run_a", "run_b", "run_c"):
            store.create_run(new_run(name))
        store.claim("run_a", [member("a"), member("b")], waiter_request("a", "b"))
        for run_id, name in (("run_b", "a"), ("run_c", "b")):
            claims = [member(name, "new")]
            store.claim(run_id, claims, waiter_request(name), supersede=True)
        ended = store.get_run("run_a")
        assert (ended.control, ended.control_reason) == (
            RunControlState.CANCEL,
            "superseded by run_c",
        )
        assert not store.list_waiters(run_id="run_a")

    def test_answers_of_members_are_noted(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Nobody could tell good partitions from bad ones without reading all results."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member("a"), member("b")], waiter_request("a", "b"))
        assert [m.ok_count for m in store.list_members("run_a")] == [None, None]
        driver.close(ok_by_member={0: 1, 1: 0})
        assert [m.ok_count for m in store.list_members("run_a")] == [1, 0]

    def test_run_under_cancel_conflicts(self, store: OrchestratorStore) -> None:
        """A request would attach to a run that is about to fail all its rows."""
        for name in ("run_a", "run_b"):
            store.create_run(new_run(name))
        store.claim("run_a", [member("a")], waiter_request("a"))
        store.set_control("run_a", RunControlState.CANCEL, "user")
        result = store.claim("run_b", [member("a")], waiter_request("a"))
        assert result.conflict == (identity("a"),)

    def test_claim_is_repeatable(self, store: OrchestratorStore) -> None:
        """A request that died right after its claim would conflict with itself when run again."""
        store.create_run(new_run())
        request = waiter_request("a", waiter_id="w1")
        for _ in range(2):
            result = store.claim("run_a", [member("a")], request)
            assert result == ClaimResult(run_id="run_a", attached=False)
        second = store.claim("run_a", [member("a")], waiter_request("a"))
        assert second == ClaimResult(run_id="run_a", attached=False)
        assert len(store.list_waiters(run_id="run_a")) == 2
        with pytest.raises(RunNotFoundError, match="run_x"):
            store.claim("run_x", [member("z")], waiter_request("z"))

    def test_released_identity_is_free(self, store: OrchestratorStore) -> None:
        """A delivered partition could never be asked for again."""
        store.create_run(new_run("run_a"))
        store.create_run(new_run("run_b"))
        store.claim("run_a", [member("a")], waiter_request("a"))
        store.release_members("run_a")
        store.release_members("run_a")
        assert not store.list_members("run_a")[0].is_open
        result = store.claim("run_b", [member("a", "new")], waiter_request("a"))
        assert result == ClaimResult(run_id="run_b", attached=False)

    def test_many_partitions(self, store: OrchestratorStore) -> None:
        """A backfill of thousands of partitions would hit the database's limit of parameters."""
        store.create_run(new_run("run_a"))
        store.create_run(new_run("run_b"))
        names = [f"p{number}" for number in range(1500)]
        claims = [member(name) for name in names]
        store.claim("run_a", claims, waiter_request(*names))
        assert store.claim("run_b", claims, waiter_request(*names)).attached
        assert [m.identity.partition for m in store.list_members("run_a") if m.is_open] == names

    def test_noted_identity_is_free(self, store: OrchestratorStore) -> None:
        """A preview would keep others from a partition, or its answers would be paid again."""
        store.create_run(new_run("run_a"))
        store.create_run(new_run("run_b"))
        store.claim("run_b", [member("a")], waiter_request("a"))
        store.note_members("run_a", [member("a"), member("b", item_count=2)])
        listed = store.list_members("run_a")
        assert [(m.identity.partition, m.item_count) for m in listed] == [("a", 1), ("b", 2)]
        assert not any(m.is_open for m in listed)
        assert store.unwanted_rows("run_a") == []
        store.create_run(new_run("run_c"))
        result = store.claim("run_c", [member("b")], waiter_request("b"))
        assert result == ClaimResult(run_id="run_c", attached=False)
        assert set(store.latest_runs([identity("a")], but="")) == {"run_a", "run_b"}
        assert store.latest_runs([identity("b")], but="run_c") == ["run_a"]

    def test_noted_runs_hide_no_older_one(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """After three previews, a whole partition would be paid again."""
        whole = RunDriver(store, clock)
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w1"))
        whole.close()
        store.end_waiter("w1", WaiterState.SERVED, None)
        for number in range(5):
            clock.advance(1)
            preview = RunDriver(store, clock, f"run_p{number}")
            store.note_members(preview.run_id, [member("a")])
            preview.close()
        found = store.latest_runs([identity("a")], but="")
        assert found == ["run_p4", "run_p3", "run_p2", "run_p1", "run_p0", "run_a"]


class WaiterContract:
    """What every store promises about waiters."""

    def test_last_waiter_of_a_terminal_run_frees_it(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """An identity would stay taken for ever, or be freed before its results were served."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w1"))
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w2"))
        assert store.end_waiter("w1", WaiterState.CANCELLED, "gone").ended
        driver.close()
        assert store.list_members("run_a")[0].is_open
        assert store.end_waiter("w2", WaiterState.SERVED, None).ended
        assert not store.list_members("run_a")[0].is_open
        assert not store.end_waiter("w2", WaiterState.FAILED, "late").ended
        waiter = store.get_waiter("w2")
        assert (waiter.state, waiter.ended_at) == (WaiterState.SERVED, clock.now())
        with pytest.raises(StoreError, match="no end"):
            store.end_waiter("w2", WaiterState.OPEN, None)

    def test_closing_an_unwanted_run_frees_it(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run whose waiters all left would hold its identities for ever."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w1"))
        store.end_waiter("w1", WaiterState.CANCELLED, "gone")
        assert store.list_members("run_a")[0].is_open
        driver.close(RunState.CANCELLED)
        assert not store.list_members("run_a")[0].is_open

    def test_equal_demands_are_one_waiter(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """What four requests ask for alike would be materialized four times."""
        RunDriver(store, clock)
        claims = [member("a"), member("b")]
        store.claim("run_a", claims, waiter_request("a", "b", waiter_id="w1", demand="d"))
        store.create_run(new_run("run_b"))
        again = store.claim("run_b", claims, waiter_request("a", "b", waiter_id="w2", demand="d"))
        assert (again.run_id, again.attached, again.joined) == ("run_a", True, "w1")
        for number, (keys, demand) in enumerate(
            [(("a", "b"), "other"), (("a", "b"), None), (("a",), "d")], start=3
        ):
            known = [claim for claim in claims if claim.identity.partition in keys]
            mine = waiter_request(*keys, waiter_id=f"w{number}", demand=demand)
            assert store.claim("run_a", known, mine).joined is None
        assert [w.waiter_id for w in store.list_waiters()] == ["w1", "w3", "w4", "w5"]
        store.end_waiter("w1", WaiterState.SERVED, None)
        late = store.claim("run_a", claims, waiter_request("a", "b", waiter_id="w6", demand="d"))
        assert late.joined is None

    def test_updates_are_guarded(self, store: OrchestratorStore) -> None:
        """Two ticks that serve one waiter would overwrite each other's progress."""
        store.create_run(new_run())
        store.claim("run_a", [], waiter_request(waiter_id="w1"))
        waiter = store.get_waiter("w1")
        updated = store.update_waiter(waiter, progress={"segments": [1]})
        assert (updated.progress, updated.payload) == ({"segments": [1]}, waiter.payload)
        assert store.update_waiter(updated, payload={}).progress == {"segments": [1]}
        with pytest.raises(StaleTransitionError, match=r"'w1'.*version 1.*version 3"):
            store.update_waiter(waiter, progress={})
        store.end_waiter("w1", WaiterState.SERVED, None)
        with pytest.raises(StaleTransitionError, match="is served"):
            store.update_waiter(store.get_waiter("w1"), progress={})

    def test_waiters_are_listed_in_order(self, store: OrchestratorStore) -> None:
        """Sensors would serve waiters unfairly or see those of others."""
        for run_id in ("run_a", "run_b"):
            store.create_run(new_run(run_id))
            for number in range(2):
                store.claim(run_id, [], waiter_request(waiter_id=f"{run_id}{number}"))
        store.end_waiter("run_a0", WaiterState.FAILED, "verdict")
        listed = [w.waiter_id for w in store.list_waiters()]
        assert listed == ["run_a0", "run_a1", "run_b0", "run_b1"]
        assert [w.waiter_id for w in store.list_waiters(run_id="run_b")] == ["run_b0", "run_b1"]
        still_open = store.list_waiters(namespace="default", states=[WaiterState.OPEN])
        assert [w.waiter_id for w in still_open] == ["run_a1", "run_b0", "run_b1"]
        assert store.list_waiters(namespace="other") == []


class UnwantedContract:
    """What every store promises about members that nobody wants any more."""

    def _two_waiters(self, store: OrchestratorStore, clock: ManualClock) -> RunDriver:
        """Rows 0 and 1 of ``a``, 2 of ``b``, 3, 4 of ``c``; one waiter for all, one for ``b``."""
        driver = RunDriver(store, clock)
        claims = [member("a", item_count=2), member("b"), member("c", item_count=2)]
        store.claim("run_a", claims, waiter_request("a", "b", "c", waiter_id="w1"))
        store.claim("run_a", [member("b")], waiter_request("b", waiter_id="w2"))
        return driver

    def test_cancelled_waiter_leaves_what_others_want(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A cancelled backfill would be answered to its end because one partition is wanted."""
        self._two_waiters(store, clock)
        assert store.unwanted_rows("run_a") == []
        store.end_waiter("w1", WaiterState.CANCELLED, "gone")
        assert [m.is_wanted for m in store.list_members("run_a")] == [False, True, False]
        assert [m.is_open for m in store.list_members("run_a")] == [True, True, True]
        assert store.unwanted_rows("run_a") == [(0, 1), (3, 4)]

    def test_served_waiter_leaves_all_wanted(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """What was delivered once would be taken from those who still wait for it."""
        self._two_waiters(store, clock)
        store.end_waiter("w1", WaiterState.SERVED, None)
        assert store.unwanted_rows("run_a") == []

    @pytest.mark.parametrize("end", [WaiterState.CANCELLED, WaiterState.FAILED])
    def test_last_unserved_waiter_cancels_its_run(
        self, store: OrchestratorStore, clock: ManualClock, end: WaiterState
    ) -> None:
        """A crash between the two would leave a run that goes on sending for nobody."""
        self._two_waiters(store, clock)
        first = store.end_waiter("w1", WaiterState.CANCELLED, "gone")
        assert (first.ended, first.run_cancelled) == (True, False)
        last = store.end_waiter("w2", end, "gone too")
        assert (last.ended, last.run_cancelled) == (True, True)
        run = store.get_run("run_a")
        assert (run.control, run.control_reason) == (RunControlState.CANCEL, "gone too")
        assert [m.is_wanted for m in store.list_members("run_a")] == [False, True, False]

    def test_last_waiter_may_keep_its_run(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """An asset that is not to cancel what was paid for would cancel it all the same."""
        self._two_waiters(store, clock)
        store.end_waiter("w1", WaiterState.CANCELLED, "gone", keeps_work=True)
        last = store.end_waiter("w2", WaiterState.CANCELLED, "gone", keeps_work=True)
        assert (last.ended, last.run_cancelled) == (True, False)
        assert store.get_run("run_a").control is RunControlState.RUN
        assert store.unwanted_rows("run_a") == []

    def test_last_served_waiter_cancels_nothing(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would be cancelled because what it answered was handed over."""
        self._two_waiters(store, clock)
        store.end_waiter("w1", WaiterState.SERVED, None)
        assert not store.end_waiter("w2", WaiterState.SERVED, None).run_cancelled
        assert store.get_run("run_a").control is RunControlState.RUN

    def test_unwanted_member_is_taken_over(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A new request would wait for rows that are given up, or pay for those in flight."""
        self._two_waiters(store, clock)
        store.end_waiter("w1", WaiterState.CANCELLED, "gone")
        store.create_run(new_run("run_b"))
        result = store.claim("run_b", [member("c", item_count=2)], waiter_request("c"))
        assert result.conflict == (identity("c"),)
        result = store.claim(
            "run_b", [member("c", item_count=2)], waiter_request("c"), supersede=True
        )
        assert (result.run_id, result.superseded) == ("run_b", "run_a")
        assert store.get_run("run_b").predecessor == "run_a"
        assert store.get_run("run_a").control is RunControlState.RUN

    def test_chunks_of_unwanted_members(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Chunks that hold rows of somebody else would be given up, or others would be sent."""
        driver = self._two_waiters(store, clock)
        for first, last in ((0, 1), (1, 2), (3, 4)):
            driver.seal(first_row=first, last_row=last, item_count=2)
        store.end_waiter("w1", WaiterState.CANCELLED, "gone")
        flags = [chunk.is_unwanted for chunk in store.list_chunks("run_a")]
        assert flags == [True, False, True]
        late = driver.seal(first_row=3, last_row=3, item_count=1)
        assert late.is_unwanted
        assert not driver.seal(first_row=2, last_row=2, item_count=1).is_unwanted
