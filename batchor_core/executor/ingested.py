"""How rows get into a run for good, whether they come from a source or from another run."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from batchor_core.executor.cycle import Cycle
from batchor_core.executor.digests import RowsDigest, fingerprint
from batchor_core.executor.seal import ChunkWriter
from batchor_core.job import encode_declaration
from batchor_core.model.records import ChunkRecord


def seal_rows(
    cycle: Cycle,
    writer: ChunkWriter,
    extra: pa.Table,
    checkpoint: Mapping[str, Any],
    digest: RowsDigest,
) -> ChunkRecord:
    """Seal a chunk of round 0, with a checkpoint behind it.

    A crash leaves files that nothing points at; reading goes on behind the last sealed chunk.
    """
    with writer:
        chunk = writer.seal(extra)
    cycle.probe("ingest.sealed")
    sealed = cycle.store.seal_chunk(cycle.lease, chunk, checkpoint)
    digest.add(writer.item_ids, writer.request_keys, writer.members)
    cycle.probe("ingest.committed")
    cycle.keeper.keep()
    return sealed


def finish_rows(cycle: Cycle, digest: RowsDigest) -> None:
    """Record that all rows are sealed, and what they are."""
    declaration = encode_declaration(cycle.run.spec["declaration"])
    mark = fingerprint(declaration, digest.member_digests())
    cycle.run = cycle.store.finish_ingestion(cycle.lease, mark)
    cycle.probe("ingest.finished")
