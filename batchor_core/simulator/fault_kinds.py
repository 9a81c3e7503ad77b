"""Every kind of fault that a rule may name."""

from batchor_core.simulator.batch_faults import BATCH_KINDS
from batchor_core.simulator.content_faults import CONTENT_KINDS
from batchor_core.simulator.faults import ClockKind, FaultKind
from batchor_core.simulator.line_faults import LINE_KINDS
from batchor_core.simulator.line_shapes import LINE_SHAPES
from batchor_core.simulator.list_faults import LIST_KINDS
from batchor_core.simulator.record_faults import RECORD_KINDS
from batchor_core.simulator.route_faults import ROUTE_KINDS

_CLOCK_KINDS = (ClockKind(name="clock_offset_seconds", defaults={"seconds": 0.0}),)

FAULT_KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        *LINE_KINDS,
        *LINE_SHAPES,
        *BATCH_KINDS,
        *RECORD_KINDS,
        *LIST_KINDS,
        *ROUTE_KINDS,
        *CONTENT_KINDS,
        *_CLOCK_KINDS,
    )
}
