"""The points where a crash would leave something behind: what, who repairs it, what it costs.

Tests raise, block and kill at every one of them, and compare this list with the source;
``docs/crash-matrix.md`` is generated from it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CrashPoint:
    """One probe, and what follows if the process dies right there.

    Attributes:
        name: The step and what it has just done.
        leaves: What is left behind that the process would still have dealt with.
        repairer: Which step of the next cycle, of any process, deals with it.
        cost: What the crash costs beside the rest of the dead process's lease.
    """

    name: str
    leaves: str
    repairer: str
    cost: str


CRASH_POINTS: tuple[CrashPoint, ...] = (
    CrashPoint(
        name="ingest.sealed",
        leaves="the files of a chunk that no record points at",
        repairer="ingest, from the last checkpoint",
        cost="reading the chunk's rows again",
    ),
    CrashPoint(
        name="ingest.committed",
        leaves="a source that is read to its checkpoint",
        repairer="ingest, from there; a source that can be read only once starts over",
        cost="nothing",
    ),
    CrashPoint(
        name="ingest.finished",
        leaves="chunks that are ready",
        repairer="submit",
        cost="nothing",
    ),
    CrashPoint(
        name="reuse.written",
        leaves="files with earlier answers that no record points at",
        repairer="reuse looks at the chunk again",
        cost="local storage",
    ),
    CrashPoint(
        name="reuse.committed",
        leaves="a chunk that was looked at, and others that were not",
        repairer="reuse looks at the others",
        cost="nothing",
    ),
    CrashPoint(
        name="submit.intended",
        leaves="an intent that allows no create call yet",
        repairer="recover voids it at once",
        cost="nothing",
    ),
    CrashPoint(
        name="submit.uploaded",
        leaves="the same, and a request file at the provider that no record points at",
        repairer="recover voids the intent at once; nobody removes the file",
        cost="storage at the provider, an upload",
    ),
    CrashPoint(
        name="submit.create_allowed",
        leaves="an intent that allows a create call, and a request file at the provider",
        repairer="recover looks for a batch, and voids the intent after the settling time",
        cost="the settling time, an upload",
    ),
    CrashPoint(
        name="submit.created",
        leaves="a provider batch that no record points at",
        repairer="recover finds and adopts it",
        cost="nothing",
    ),
    CrashPoint(
        name="submit.activated",
        leaves="a provider batch in flight",
        repairer="poll",
        cost="nothing",
    ),
    CrashPoint(
        name="submit.create_unknown",
        leaves="an intent whose create call ended without a verdict",
        repairer="recover looks for a batch, and adopts it or voids the intent after settling",
        cost="the settling time, if there is none",
    ),
    CrashPoint(
        name="submit.voided",
        leaves="a chunk that was refused and is ready again, and its request file at the provider",
        repairer="submit meets the same refusal and acts on it; nobody removes the file",
        cost="a refused call, storage at the provider",
    ),
    CrashPoint(
        name="split.sealed",
        leaves="the files of two halves that no record points at",
        repairer="submit meets the same refusal, and splits again",
        cost="a refused call, local storage",
    ),
    CrashPoint(
        name="recover.adopted",
        leaves="a provider batch in flight",
        repairer="poll",
        cost="nothing",
    ),
    CrashPoint(
        name="recover.voided",
        leaves="a chunk that is ready again, and its request file at the provider",
        repairer="submit; nobody removes the file",
        cost="storage at the provider",
    ),
    CrashPoint(
        name="cancel.called",
        leaves="a provider batch that was asked to cancel, without a note of it",
        repairer="cancel asks again",
        cost="a call",
    ),
    CrashPoint(
        name="cancel.asked",
        leaves="provider batches of which some were asked to cancel",
        repairer="cancel asks the others",
        cost="what the others execute meanwhile",
    ),
    CrashPoint(
        name="collect.raw_kept",
        leaves="a copy of the provider's answers",
        repairer="collect downloads again",
        cost="a download, local storage",
    ),
    CrashPoint(
        name="collect.written",
        leaves="an outcome file that no record points at",
        repairer="collect downloads and judges again",
        cost="a download, local storage",
    ),
    CrashPoint(
        name="collect.committed",
        leaves="the batch's files at the provider",
        repairer="nobody: they expire there",
        cost="storage at the provider",
    ),
    CrashPoint(
        name="retry.sealed",
        leaves="the files of the next round's chunks that no record points at",
        repairer="retry packs again",
        cost="local storage",
    ),
    CrashPoint(
        name="retry.committed",
        leaves="chunks of the next round that are ready",
        repairer="submit",
        cost="nothing",
    ),
    CrashPoint(
        name="finish.part_written",
        leaves="a part of the result table that no record points at",
        repairer="finish writes it again",
        cost="local storage",
    ),
    CrashPoint(
        name="finish.written",
        leaves="a complete result table of a run that is still open",
        repairer="finish closes the run",
        cost="nothing",
    ),
    CrashPoint(
        name="finish.closed",
        leaves="nothing",
        repairer="nobody has to",
        cost="nothing",
    ),
    CrashPoint(
        name="reconcile.adopted",
        leaves="batches of a restored store that it does not know yet",
        repairer="reconcile, once more",
        cost="nothing",
    ),
    CrashPoint(
        name="reconcile.cancelled",
        leaves="twins at the provider that are not cancelled yet",
        repairer="reconcile, once more",
        cost="what the twins answer until then",
    ),
)
"""In the order in which a run may pass them."""

PROBES: tuple[str, ...] = tuple(point.name for point in CRASH_POINTS)
"""Their names."""
