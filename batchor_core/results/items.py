"""Results item by item, for programs that want objects rather than a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.tables import METADATA
from batchor_core.model.records import ChunkRecord
from batchor_core.model.states import ChunkState, SubmissionState, Verdict
from batchor_core.planning.result_schema import EMBEDDING_COLUMN
from batchor_core.planning.schema_compiler import AnswerValidator, InvalidAnswer
from batchor_core.store.protocol import Store

_COLUMNS = [
    "item_id",
    "batch_status",
    "batch_error_code",
    "batch_error_message",
    "batch_output_text",
    "batch_attempts",
]
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """What became of one item.

    Attributes:
        item_id: The user's key.
        status: ``ok`` or ``failed``.
        output: The answer as an instance of the output model; None without one, if failed, and
            where the model does not take the same answer any more (a date that had to lie in the
            future, say). For embeddings: the vector, as a list of floats.
        output_text: The answer as the provider gave it, or what a failed item answered.
        error: ``{"code", "message"}`` of a failed item, else None.
        attempt_count: Executed and paid requests.
        metadata: What the item was handed in with.
    """

    item_id: str
    status: str
    output: Any
    output_text: str | None
    error: Mapping[str, str | None] | None
    attempt_count: int
    metadata: Mapping[str, Any]


def read_items(
    store: Store,
    artifacts: ArtifactStore,
    part: ChunkRecord,
    validator: AnswerValidator | None,
    *,
    has_vectors: bool,
) -> Iterator[ItemResult]:
    """Yield the results of one part of the result table, in input order.

    Answers are validated from their own text: the table's columns are made for tables, and do not
    say all that a model may want (aliases, excluded fields, which variant of a union it was).
    """
    assert part.results is not None
    with artifacts.local(part.results) as path:
        columns = [*_COLUMNS, EMBEDDING_COLUMN] if has_vectors else _COLUMNS
        table = pq.read_table(path, columns=columns)
    with artifacts.local(part.items) as path:
        items = pq.read_table(path, columns=["row", METADATA])
    texts = _answer_texts(store, artifacts, part)
    yield from items_of(
        table,
        [texts.get(row) for row in items["row"].to_pylist()],
        items[METADATA].to_pylist(),
        validator,
        has_vectors=has_vectors,
    )


def items_of(
    table: pa.Table,
    texts: Sequence[str | None],
    metadata: Sequence[str | None],
    validator: AnswerValidator | None,
    *,
    has_vectors: bool,
) -> Iterator[ItemResult]:
    """Yield the results in some rows of the result table.

    Args:
        table: The rows.
        texts: What each was answered, as it came.
        metadata: JSON of what each was handed in with.
        validator: Validates answers; None for text.
        has_vectors: Whether answers are embeddings.
    """
    names = [*_COLUMNS, EMBEDDING_COLUMN] if has_vectors else _COLUMNS
    start = 0
    for batch in table.select(names).to_batches(max_chunksize=_ROWS_AT_ONCE):
        for number, row in enumerate(batch.to_pylist(), start):
            vector = row[EMBEDDING_COLUMN] if has_vectors else None
            yield _item_result(row, texts[number], metadata[number], validator, vector)
        start += batch.num_rows


def _answer_texts(store: Store, artifacts: ArtifactStore, part: ChunkRecord) -> dict[int, str]:
    """Return the text of each valid answer, by row."""
    done = store.list_chunks(part.run_id, states=[ChunkState.DONE])
    overlapping = {
        c.seq for c in done if c.first_row <= part.last_row and part.first_row <= c.last_row
    }
    texts: dict[int, str] = {}
    for submission in store.list_submissions(part.run_id, states=[SubmissionState.COLLECTED]):
        if submission.chunk_seq not in overlapping or not submission.ok_count:
            continue
        assert submission.outcomes is not None
        with artifacts.local(submission.outcomes) as path:
            table = pq.read_table(
                path,
                columns=["row", "text"],
                filters=[
                    ("verdict", "=", Verdict.OK.value),
                    ("row", ">=", part.first_row),
                    ("row", "<=", part.last_row),
                ],
            )
        texts.update(zip(table["row"].to_pylist(), table["text"].to_pylist(), strict=True))
    return texts


def _item_result(
    row: Mapping[str, Any],
    text: str | None,
    metadata: str | None,
    validator: AnswerValidator | None,
    vector: list[float] | None,
) -> ItemResult:
    is_ok = row["batch_status"] == Verdict.OK
    output: Any = vector
    if is_ok and validator is not None and text is not None:
        checked = validator.check(text)
        output = None if isinstance(checked, InvalidAnswer) else checked
    error = None
    if not is_ok:
        error = {"code": row["batch_error_code"], "message": row["batch_error_message"]}
    return ItemResult(
        item_id=row["item_id"],
        status=row["batch_status"],
        output=output,
        output_text=text if is_ok else row["batch_output_text"],
        error=error,
        attempt_count=row["batch_attempts"],
        metadata=msgspec.json.decode(metadata) if metadata else {},
    )
