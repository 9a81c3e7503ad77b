"""What an orchestrator's integration needs beyond the public names of ``batchor_core``.

``batchor_dagster`` imports from ``batchor_core``, ``batchor_core.errors`` and from here, and from
nowhere else in the core (a contract checks it), so that the rest may be rearranged.
"""

from batchor_core.clock import Clock
from batchor_core.durable import make_folder, publish
from batchor_core.executor.budget import change_budget
from batchor_core.executor.due import HEAVY_STEPS, due_steps
from batchor_core.executor.poll_account import Walk
from batchor_core.ids import new_waiter_id, path_segment
from batchor_core.job import (
    Items,
    PromptBuilder,
    check_importable,
    load_model,
    output_model_of,
)
from batchor_core.model.records import Heartbeat, Identity, Member, RunRecord, Waiter
from batchor_core.model.states import WaiterState
from batchor_core.planning.prices import Price
from batchor_core.planning.result_schema import (
    ResultDeclaration,
    arrow_type,
    build_result_schema,
)
from batchor_core.planning.schema_compiler import Dialect, compile_schema
from batchor_core.planning.templates import PromptTemplate
from batchor_core.providers.protocol import BatchProvider
from batchor_core.providers.registry import ProviderConfig, ProviderFactory, connect
from batchor_core.providers.sdk_clients import CallUsage, open_sdk_client
from batchor_core.results.by_member import MemberResults
from batchor_core.sources.limited import LimitedItemSource
from batchor_core.sources.members import MemberItemSource, MemberRows
from batchor_core.sources.objects import source_of
from batchor_core.store.orchestration import (
    ClaimResult,
    MemberClaim,
    OrchestratorStore,
    WaiterGroup,
    WaiterRequest,
)
from batchor_core.store.protocol import OpenWork

__all__ = [
    "HEAVY_STEPS",
    "BatchProvider",
    "CallUsage",
    "ClaimResult",
    "Clock",
    "Dialect",
    "Heartbeat",
    "Identity",
    "Items",
    "LimitedItemSource",
    "Member",
    "MemberClaim",
    "MemberItemSource",
    "MemberResults",
    "MemberRows",
    "OpenWork",
    "OrchestratorStore",
    "Price",
    "PromptBuilder",
    "PromptTemplate",
    "ProviderConfig",
    "ProviderFactory",
    "ResultDeclaration",
    "RunRecord",
    "Waiter",
    "WaiterGroup",
    "WaiterRequest",
    "WaiterState",
    "Walk",
    "arrow_type",
    "build_result_schema",
    "change_budget",
    "check_importable",
    "compile_schema",
    "connect",
    "due_steps",
    "load_model",
    "make_folder",
    "new_waiter_id",
    "open_sdk_client",
    "output_model_of",
    "path_segment",
    "publish",
    "source_of",
]
