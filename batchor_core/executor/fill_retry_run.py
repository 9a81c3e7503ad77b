"""Filling a retry run: the failed items of a finished run, cut out of its sealed request files."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.kinds import ArtifactKind, check_not_pruned
from batchor_core.artifacts.tables import KEPT, METADATA
from batchor_core.errors import ConfigurationError, NothingToRetryError
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.digests import RowsDigest
from batchor_core.executor.ingested import finish_rows, seal_rows
from batchor_core.executor.recut import lines_of
from batchor_core.executor.seal import ChunkWriter, Position, open_chunk
from batchor_core.ids import LONGEST_RUN_ID
from batchor_core.model.records import ChunkRecord, NewRun, RunRecord
from batchor_core.planning.chunking import ChunkMeter
from batchor_core.results.failed_items import FailedItems
from batchor_core.store.protocol import Store

NEEDED = (ArtifactKind.REQUESTS, ArtifactKind.ITEMS, ArtifactKind.RESULTS)
"""Kinds of files of the finished run that are read."""


def fill_retry_run(cycle: Cycle, origin: str) -> bool:
    """Seal chunks of failed items of ``origin``; the twin of ``ingest``, without a source.

    Items keep their row numbers, ids, kept columns and metadata, and begin without attempts. A
    crash leaves sealed chunks with a checkpoint; any process goes on behind the last one.

    Returns:
        Whether a chunk was sealed or the end was reached.

    Raises:
        ArtifactError: Files of ``origin`` are gone.
    """
    check_not_pruned(cycle.store.get_run(origin), NEEDED, "its failed items cannot be cut out")
    return _Filling(cycle, origin).run()


def open_retry_run(
    store: Store,
    artifacts: ArtifactStore,
    origin: RunRecord,
    run_id: str | None,
    codes: Sequence[str] | None,
) -> RunRecord:
    """Record a run that asks failed items of ``origin`` again, or return the one that does.

    Raises:
        NothingToRetryError: No failed item is left that was not taken before.
        ArtifactPrunedError: Files that they would be cut out of were pruned.
        ConfigurationError: The id is too long.
        RunError: Another retry is still taking items, or the id is another run's.
    """
    check_not_pruned(origin, NEEDED, "its failed items cannot be cut out of them")
    earlier = store.retries_of(origin.run_id)
    new_id = run_id or _usual_id(origin, earlier, codes)
    if len(new_id) > LONGEST_RUN_ID:
        raise ConfigurationError(
            f"a run id of {len(new_id)} characters: give 1 to {LONGEST_RUN_ID}"
        )
    if all(run.run_id != new_id for run in earlier):
        failed = FailedItems(store, artifacts, origin.run_id, codes=codes)
        if not failed.count():
            raise NothingToRetryError(_why_nothing(origin, earlier, codes))
    return store.open_retry(
        NewRun(
            run_id=new_id,
            namespace=origin.namespace,
            spec={**origin.spec, "retry_codes": codes},
            account=origin.account,
            scope=origin.scope,
            declaration_digest=origin.declaration_digest,
            retry_of=origin.run_id,
            budget_usd=origin.budget_usd,
            budget_day_usd=origin.budget_day_usd,
        )
    )


def _usual_id(origin: RunRecord, earlier: Sequence[RunRecord], codes: Sequence[str] | None) -> str:
    """Return the id of the same retry that still goes on, or the next one."""
    for run in earlier:
        if not run.state.is_terminal and run.spec.get("retry_codes") == codes:
            return run.run_id
    return f"{origin.run_id}.retry-{len(earlier) + 1}"


def _why_nothing(
    origin: RunRecord, earlier: Sequence[RunRecord], codes: Sequence[str] | None
) -> str:
    which = "" if codes is None else f" with {', '.join(codes)}"
    text = f"run {origin.run_id!r} has no failed item{which} that may be asked again"
    if earlier:
        return f"{text}: run {earlier[-1].run_id!r} has taken them; retry what fails there"
    if codes is None:
        text += "; those that failed as run_cancelled are taken only if that code is named"
    return text


class _Filling:
    """One stretch of it, from the checkpoint on."""

    def __init__(self, cycle: Cycle, origin: str) -> None:
        self._cycle = cycle
        self._failed = FailedItems(
            cycle.store,
            cycle.artifacts,
            origin,
            codes=cycle.run.spec.get("retry_codes"),
            but_of=cycle.run.run_id,
        )
        self._meter = ChunkMeter(cycle.plan.limits)
        self._digest = RowsDigest()
        self._sealed = cycle.store.list_chunks(cycle.run.run_id)
        self._writer: ChunkWriter | None = None
        self._extra: list[pa.Table] = []
        self._end: tuple[ChunkRecord, int] | None = None

    def run(self) -> bool:
        for chunk in self._sealed:
            self._digest.add_chunk(self._cycle.artifacts, chunk)
        before = len(self._sealed)
        try:
            for root, items, skip in self._parts():
                self._take(root, items, skip)
                self._cycle.keeper.keep()
                if self._cycle.is_over and len(self._sealed) > before:
                    return True  # what is not sealed yet is taken again by the next cycle
            self._finish()
        finally:
            if self._writer is not None:
                self._writer.close()
        return True

    def _parts(self) -> Iterator[tuple[ChunkRecord, pa.Table, int]]:
        """Yield (chunk, its failed items, how many of them are sealed already)."""
        checkpoint = self._cycle.run.checkpoint or {"root": -1, "taken": 0}
        for root in self._failed.roots:
            if root.seq >= checkpoint["root"]:
                skip = checkpoint["taken"] if root.seq == checkpoint["root"] else 0
                yield root, self._failed.of(root), skip

    def _take(self, root: ChunkRecord, items: pa.Table, skip: int) -> None:
        if items.num_rows <= skip:
            return
        columns = [name for name in (METADATA, KEPT) if name in items.schema.names]
        begin = number = skip
        lines = lines_of(self._cycle, root, items.slice(skip))
        for number, (item, line) in enumerate(lines, skip):
            if not self._meter.fits(len(line), item["tokens"]):
                self._extra.append(items.select(columns).slice(begin, number - begin))
                begin = number
                self._seal(root, number)
            if self._writer is None:
                position = Position(seq=len(self._sealed), is_again=True)
                self._writer = open_chunk(self._cycle, position)
            self._writer.add_again(item, line, 0)
            self._meter.add(len(line), item["tokens"])
        self._extra.append(items.select(columns).slice(begin))
        self._end = (root, number + 1)

    def _seal(self, root: ChunkRecord, taken: int) -> None:
        """Seal the open chunk; ``taken`` items of ``root`` are in it and in those before."""
        if self._writer is None:
            return
        cycle = self._cycle
        writer, self._writer = self._writer, None
        extra, self._extra = pa.concat_tables(self._extra), []
        checkpoint = {"root": root.seq, "taken": taken, "source": None}
        self._sealed.append(seal_rows(cycle, writer, extra, checkpoint, self._digest))
        self._meter.reset()

    def _finish(self) -> None:
        cycle = self._cycle
        if self._end is not None:
            self._seal(*self._end)
        finish_rows(cycle, self._digest)
