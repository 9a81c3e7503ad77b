"""For tests, ours and others': contract suites, a clock that stands still, builders of records.

Production code never imports it.
"""

from batchor_core.testing.clock import ManualClock

__all__ = ["ManualClock"]
