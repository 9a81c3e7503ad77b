"""The contract suite of ``Store``: what every control plane has to pass.

Use it by subclassing ``StoreContract`` with a fixture ``store`` that opens an empty store on the
fixture ``clock``.
"""

from collections.abc import Iterator

import pytest

from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.store_claims import ClaimContract, UnwantedContract, WaiterContract
from batchor_core.testing.store_money import BudgetContract, CostContract
from batchor_core.testing.store_retention import RetentionContract
from batchor_core.testing.store_runs import LeaseContract, RunContract
from batchor_core.testing.store_states import SubmissionStateContract
from batchor_core.testing.store_submissions import (
    ChunkContract,
    PollContract,
    ScopeContract,
    SubmissionContract,
)
from batchor_core.testing.store_ticks import (
    DueWorkContract,
    HeartbeatContract,
    ManyPollsContract,
    ManyWaitersContract,
)


class StoreContract(
    RunContract,
    LeaseContract,
    ChunkContract,
    SubmissionContract,
    PollContract,
    ScopeContract,
    SubmissionStateContract,
    BudgetContract,
    CostContract,
    RetentionContract,
    ClaimContract,
    UnwantedContract,
    WaiterContract,
    DueWorkContract,
    HeartbeatContract,
    ManyPollsContract,
    ManyWaitersContract,
):
    """All of the contract; subclasses bring the store."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Time stands still unless a test moves it."""
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[OrchestratorStore]:
        """Open an empty store on the clock, and close it."""
        raise NotImplementedError

    def test_close_twice(self, store: OrchestratorStore) -> None:
        """A store that is closed by two owners would crash the second."""
        store.close()
        store.close()
