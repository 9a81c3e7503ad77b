"""What was executed, how often, and in which batches: the proof that nothing was paid twice.

The ledger is an SQLite file in the spool. A dict of digests would need some 300 bytes of memory
for each of a million requests, and could not also say in which batches; appending rows without an
index costs about a microsecond each, and the grouping is only paid when somebody asks.
"""

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

_MAX_LISTED = 100

_SCHEMA = """
CREATE TABLE batches (number INTEGER PRIMARY KEY, id TEXT NOT NULL, run TEXT NOT NULL);
CREATE TABLE executions (
    batch INTEGER NOT NULL, custom_id TEXT NOT NULL, item TEXT NOT NULL, digest BLOB NOT NULL,
    billed INTEGER NOT NULL, fault TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL);
"""

_SOUND = "executions JOIN batches ON batches.number = batch WHERE billed AND fault = ''"


class Execution(NamedTuple):
    """One request that a batch dealt with.

    `billed` is 0 for answers that cost nothing: HTTP errors, lines lost by the provider, lines
    left over by an expired or cancelled batch. `fault` names what was wrong with the answer,
    empty if it was sound. `part` names one of several inputs that share a request.
    """

    custom_id: str
    digest: bytes
    billed: int
    fault: str
    input_tokens: int
    output_tokens: int
    part: str = ""

    @property
    def item(self) -> str:
        """What stays the same when an item is sent again: its part, or the custom_id's end."""
        return self.part or self.custom_id.rpartition("-")[2]


class PaidTwice(NamedTuple):
    """An item that got more than one sound answer, all of them paid."""

    run: str
    row: str
    times: int
    batches: list[str]


class Ledger:
    """Every execution of the simulator, in the order they happened.

    An item is identified by its run (`metadata.batchor_run` of its batch, else the empty string),
    the part of its custom_id after the last `-`, and the digest of its url and canonical body:
    custom_ids of one row differ from chunk to chunk in the part before. Two rows with equal
    prompts are two items; one row sent twice is one.

    Of inputs that share a request (embeddings) each is an execution of its own. A custom_id does
    not name them, and the next time they may be shared out otherwise: an item is then its own
    digest, and the number of its occurrence in the batch. Equal inputs in two batches of one run
    cannot be told from one input that was sent twice.

    Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # Losing the ledger with the process is fine: it describes only that process.
        self._connection.execute("PRAGMA journal_mode = MEMORY")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.executescript(_SCHEMA)

    def open_batch(self, batch_id: str, run: str) -> int:
        """Register a batch; the number returned goes to `record`."""
        with self._lock:
            cursor = self._connection.execute(
                "INSERT INTO batches (id, run) VALUES (?, ?)", (batch_id, run)
            )
            return int(cursor.lastrowid or 0)

    def record(self, batch_number: int, executions: Iterable[Execution]) -> None:
        """Append executions of one batch, all or none."""
        rows = (
            (batch_number, entry.custom_id, entry.item, *entry[1:-1])  # the columns' order
            for entry in executions
        )
        with self._lock:
            self._connection.execute("BEGIN")
            with self._connection:
                self._connection.executemany(
                    "INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
                )

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._connection.executescript("DELETE FROM executions; DELETE FROM batches")

    def close(self) -> None:
        """Close the file; idempotent."""
        self._connection.close()

    def executed(self) -> int:
        """Executions that were billed."""
        return int(self._rows("SELECT count(*) FROM executions WHERE billed")[0][0])

    def faulted(self) -> dict[str, int]:
        """Executions that were not billed, by what became of them."""
        return dict(
            self._rows("SELECT fault, count(*) FROM executions WHERE NOT billed GROUP BY fault")
        )

    def defective(self) -> dict[str, int]:
        """Executions that were billed although a scripted fault spoilt the answer, by kind."""
        return dict(
            self._rows(
                "SELECT fault, count(*) FROM executions WHERE billed AND fault <> '' GROUP BY fault"
            )
        )

    def distinct(self) -> int:
        """Distinct items that were billed at least once."""
        rows = self._rows(
            "SELECT count(*) FROM (SELECT 1 FROM executions JOIN batches ON number = batch"
            " WHERE billed GROUP BY run, item, digest)"
        )
        return int(rows[0][0])

    def times_paid(self, run: str) -> dict[str, int]:
        """How often each item of a run was billed, by the row part of its custom_id."""
        return dict(
            self._rows(
                "SELECT item, count(*) FROM executions JOIN batches ON number = batch"
                " WHERE billed AND run = ? GROUP BY item",
                run,
            )
        )

    def paid_twice(self, limit: int = _MAX_LISTED) -> list[PaidTwice]:
        """Items with more than one sound, billed answer, the first `limit` of them.

        A billed answer that a scripted fault spoilt does not count here: to ask again was right.
        """
        rows = self._rows(
            "SELECT run, item, count(*), group_concat(id, ' ') FROM "  # noqa: S608 a constant
            + _SOUND
            + " GROUP BY run, item, digest HAVING count(*) > 1 LIMIT ?",
            limit,
        )
        return [PaidTwice(run, item, times, ids.split()) for run, item, times, ids in rows]

    def entries(self) -> list[dict[str, Any]]:
        """Every execution, oldest first."""
        rows = self._rows(
            "SELECT id, run, custom_id, item, hex(digest), billed, fault"
            " FROM executions JOIN batches ON number = batch ORDER BY executions.rowid"
        )
        names = ("batch", "run", "custom_id", "row", "digest", "billed", "fault")
        return [dict(zip(names, row, strict=True)) | {"billed": bool(row[5])} for row in rows]

    def executed_by_batch(self) -> dict[str, int]:
        """Billed executions of each batch; batches without any are absent."""
        return dict(
            self._rows(
                "SELECT id, count(*) FROM executions JOIN batches ON number = batch"
                " WHERE billed GROUP BY number"
            )
        )

    def summary(self) -> dict[str, Any]:
        """The totals and the items paid twice, as JSON values."""
        faulted = self.faulted()
        tokens = self._rows(
            "SELECT count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0)"
            " FROM executions WHERE billed"
        )[0]
        billed = dict(zip(("requests", "input_tokens", "output_tokens"), tokens, strict=True))
        return {
            "executed": billed["requests"],
            "distinct": self.distinct(),
            "paid_twice": [entry._asdict() for entry in self.paid_twice()],
            "faulted": sum(faulted.values()),
            "faulted_by_kind": faulted,
            "defective_by_kind": self.defective(),
            "billed": billed,
        }

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()
