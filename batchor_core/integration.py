"""What an orchestrator's integration needs beyond the public names of ``batchor_core``.

``batchor_dagster`` imports from ``batchor_core``, ``batchor_core.errors`` and from here, and from
nowhere else in the core (a contract checks it), so that the rest may be rearranged.
"""

from batchor_core.executor.due import HEAVY_STEPS, due_steps
from batchor_core.ids import new_waiter_id, path_segment
from batchor_core.job import Items, PromptBuilder, check_importable
from batchor_core.model.records import Identity, RunRecord, Waiter
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
from batchor_core.store.protocol import ClaimResult, MemberClaim, OpenWork, Store, WaiterRequest

__all__ = [
    "HEAVY_STEPS",
    "BatchProvider",
    "ClaimResult",
    "Dialect",
    "Identity",
    "Items",
    "MemberClaim",
    "OpenWork",
    "Price",
    "PromptBuilder",
    "PromptTemplate",
    "ProviderConfig",
    "ProviderFactory",
    "ResultDeclaration",
    "RunRecord",
    "Store",
    "Waiter",
    "WaiterRequest",
    "WaiterState",
    "arrow_type",
    "build_result_schema",
    "check_importable",
    "compile_schema",
    "connect",
    "due_steps",
    "new_waiter_id",
    "path_segment",
]
