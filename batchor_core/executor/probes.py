"""The points where a crash would leave something behind: one name each.

Tests raise, block and kill at every one of them, and compare this list with the source.
"""

PROBES: tuple[str, ...] = (
    "ingest.sealed",
    "ingest.committed",
    "ingest.finished",
    "submit.intended",
    "submit.uploaded",
    "submit.create_allowed",
    "submit.created",
    "submit.activated",
    "submit.create_unknown",
    "submit.voided",
    "split.sealed",
    "recover.adopted",
    "recover.voided",
    "cancel.asked",
    "collect.raw_kept",
    "collect.written",
    "collect.committed",
    "retry.sealed",
    "retry.committed",
    "finish.part_written",
    "finish.written",
    "finish.closed",
)
"""In the order in which a run may pass them."""
