"""The source of SQL queries."""

import datetime as dt
import sqlite3
import uuid
from contextlib import closing
from decimal import Decimal

import polars as pl
import pytest
import sqlalchemy as sa

from batchor_core.errors import MissingColumnError, SourceError
from batchor_core.sources import SqlItemSource
from batchor_core.testing.source_suite import SourceContract, rows_of
from tests.core.postgres import postgres_databases


def quoted(name):
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def database_of(folder, rows, types=""):
    """Write rows to the table ``rows`` of a SQLite file; return its URL."""
    path = folder / "rows.db"
    names = list(rows[0]) if rows else ["id", "text"]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        columns = ", ".join(f"{quoted(name)} {types}" for name in names)
        connection.execute(f"CREATE TABLE rows ({columns})")
        holes = ", ".join("?" for _ in names)
        values = [tuple(row.values()) for row in rows]
        connection.executemany(f"INSERT INTO rows VALUES ({holes})", values)
    return f"sqlite:///{path}"


def source_of(folder, values, query="SELECT * FROM rows", id_column=None, **options):
    """Return the source of a table with the column ``v``."""
    return SqlItemSource(
        database_of(folder, [{"v": v} for v in values]), query, id_column, **options
    )


def column(source, name="v"):
    """Read one column as frames have it."""
    return [value for block in source.blocks() for value in block.frame[name].to_list()]


class TestContractOfText(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        url = database_of(folder, rows)
        return SqlItemSource(
            url, "SELECT * FROM rows ORDER BY rowid;", id_column, block_rows=block_rows
        )


class TestContractOfOrderedText(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        url = database_of(folder, rows)
        query = "WITH every AS (SELECT * FROM rows) SELECT * FROM every"
        return SqlItemSource(url, query, id_column, order_by="id", block_rows=block_rows)


class TestContractOfOrderedSelect(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        engine = sa.create_engine(database_of(folder, rows), poolclass=sa.NullPool)
        names = list(rows[0]) if rows else ["id", "text"]
        query = sa.select(sa.table("rows", *map(sa.column, names)))
        return SqlItemSource(engine, query, id_column, order_by="id", block_rows=block_rows)


def test_whole_numbers_order_rows_by_their_value(tmp_path):
    """If this fails, a killed run that goes on behind key 9 never sees key 10."""
    source = source_of(tmp_path, [10, 9, 100, 8, 7], order_by="v", block_rows=2)
    positions = [block.position for block in source.blocks()]
    assert positions == [{"after": None}, {"after": 8}, {"after": 10}]
    assert column(source) == [7, 8, 9, 10, 100]
    assert [row["v"] for _, row in rows_of(source, {"after": 8})] == [9, 10, 100]


def test_without_order_by_the_query_runs_once(tmp_path):
    """If this fails, an expensive query runs again for each stretch of reading."""
    engine = sa.create_engine(database_of(tmp_path, [{"v": n} for n in range(5)]))
    ran = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: ran.append(args[2]))
    source = SqlItemSource(engine, "SELECT v FROM rows", block_rows=2)
    assert source.columns == ["v"]
    ran.clear()
    source.fingerprint()
    for position in (None, {"row": 3}):
        list(source.blocks(position))
    assert ran == ["SELECT v FROM rows"]
    engine.dispose()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "is null"),
        ([1, 2, 2], "holds 2 more than once"),
        ([1.5], "holds a float, not whole numbers or text"),
    ],
)
@pytest.mark.parametrize("block_rows", [1, 9])
def test_a_column_that_cannot_order_rows_is_refused(tmp_path, values, message, block_rows):
    """If this fails, rows with the same key, or none, are lost when a killed run goes on."""
    source = source_of(tmp_path, values, order_by="v", block_rows=block_rows)
    for use in (source.fingerprint, lambda: list(source.blocks())):
        with pytest.raises(SourceError, match=f"the column 'v' to order by {message}$"):
            use()


def test_an_empty_id_behind_a_key_is_named(tmp_path):
    """If this fails, the row without a key cannot be found, or braces in a key break it."""
    url = database_of(tmp_path, [{"k": "{a}", "id": "1"}, {"k": "{b}", "id": ""}])
    source = SqlItemSource(url, "SELECT * FROM rows", "id", order_by="k")
    with pytest.raises(
        SourceError, match=r"^SQL query, row 0 after key '{a}': the id column 'id' "
    ):
        list(source.blocks({"after": "{a}"}))


def test_parameters_reach_the_query(tmp_path):
    """If this fails, users paste values into SQL text."""
    for order_by in (None, "v"):
        source = source_of(
            tmp_path,
            ["a", "b'; DROP TABLE rows", "c"],
            "SELECT v FROM rows WHERE v > :after",
            order_by=order_by,
            parameters={"after": "a"},
        )
        assert column(source) == ["b'; DROP TABLE rows", "c"]


def test_a_limit_in_a_select_stays(tmp_path):
    """If this fails, to order rows by a key is to get other rows."""
    url = database_of(tmp_path, [{"v": n} for n in range(9)])
    v = sa.column("v")
    query = sa.select(v).select_from(sa.table("rows", v)).order_by(v.desc()).limit(3)
    assert column(SqlItemSource(url, query)) == [8, 7, 6]
    assert column(SqlItemSource(url, query, order_by="v", block_rows=2)) == [6, 7, 8]


def test_values_keep_their_type_and_do_not_depend_on_other_rows(tmp_path):
    """If this fails, a prompt changes with the block that its row happens to be in."""
    values = [1, 2.5, "x", None, 2**62]
    for block_rows in (1, 2, 9):
        source = source_of(tmp_path, values, block_rows=block_rows)
        assert [None if v is None else str(v) for v in column(source)] == [
            "1", "2.5", "x", None, str(2**62),
        ]  # fmt: skip
        assert [row["v"] for _, row in rows_of(source)] == values
    assert column(source_of(tmp_path, [1, None])) == [1, None]
    assert column(source_of(tmp_path, [None, None])) == [None, None]
    assert column(source_of(tmp_path, [b"x", b"\0"])) == [b"x", b"\0"]


def test_the_fingerprint_tells_a_number_from_its_text(tmp_path):
    """If this fails, rows that render differently are taken for the same."""
    values = ([1], ["1"], [1.0], [None], [1, None])
    assert len({source_of(tmp_path, each).fingerprint() for each in values}) == 5


@pytest.mark.parametrize("order_by", [None, "key"])
def test_missing_and_repeated_columns_are_named(tmp_path, order_by):
    """If this fails, a typing error in a column's name is not explained."""
    with pytest.raises(MissingColumnError, match=r"^no column 'key' in SQL query; it has: v$"):
        rows_of(source_of(tmp_path, [1], id_column="key", order_by=order_by))
    with pytest.raises(SourceError, match="more than one column is named 'v'"):
        rows_of(source_of(tmp_path, [1], "SELECT v, v FROM rows"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nope FROM rows", "^SQL query: OperationalError: no such column: nope$"),
        ("SELECT v FROM rows WHERE v = :secret", r"^SQL query: InvalidRequestError: [^\n]*secret"),
        ("DELETE FROM rows", "^SQL query: ResourceClosedError: This result object does not return"),
    ],
)
def test_a_query_that_fails_is_a_source_error(tmp_path, query, message):
    """If this fails, a broken query is answered by a traceback."""
    with pytest.raises(SourceError, match=message):
        rows_of(source_of(tmp_path, [1], query))


def test_no_error_shows_the_password_or_the_parameters(tmp_path):
    """If this fails, a database's password ends up in a log."""
    sources = [
        lambda: SqlItemSource("hunter2", "SELECT 1"),
        lambda: SqlItemSource("postgresql://u:hunter2@127.0.0.1:1/x", "SELECT 1"),
        lambda: SqlItemSource("nodb://u:hunter2@127.0.0.1:1/x", "SELECT 1"),
        lambda: source_of(tmp_path, [1], "SELECT nope, :p", parameters={"p": "hunter2"}),
    ]
    for make in sources:
        with pytest.raises(SourceError) as caught:
            rows_of(make())
        error = caught.value
        while error is not None:
            assert "hunter2" not in str(error)
            error = error.__cause__


@pytest.mark.timeout(120)
def test_postgres_rows_come_through_a_cursor_of_the_server():
    """If this fails, a large result is held in memory, or its types cannot be read."""
    with postgres_databases() as new_database:
        engine = sa.create_engine(
            new_database().replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool
        )
        statement = (
            "SELECT n AS id, 'k' || n AS text, n::numeric / 4 AS quarter, "
            "('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid AS key, "
            "timestamptz '2024-03-31 00:30+00' + n * interval '1 hour' AS moment, "
            "jsonb_build_object('n', n) AS object FROM generate_series(1, 5000) AS n"
        )
        cursors = []
        sa.event.listen(
            engine, "before_cursor_execute", lambda *args: cursors.append(type(args[1]).__name__)
        )
        for order_by in (None, "id", "text"):
            source = SqlItemSource(engine, statement, "key", order_by=order_by, block_rows=1000)
            blocks = list(source.blocks())
            assert [len(block) for block in blocks] == [1000] * 5
            assert len({item_id for block in blocks for item_id in block.item_ids}) == 5000
            assert len(rows_of(source, blocks[3].position)) == 2000
            assert (
                source.fingerprint()
                == SqlItemSource(engine, statement, "key", order_by=order_by).fingerprint()
            )
        assert set(cursors) == {"ServerCursor"}
        (first, *_) = SqlItemSource(engine, statement, order_by="id").blocks()
        moment = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)
        assert first.frame.row(0) == (
            1,
            "k1",
            "0.25000000000000000000",
            str(uuid.UUID(int=1)),
            moment,
            '{"n":1}',
        )
        assert first.frame.schema["moment"] == pl.Datetime("us", "UTC")
        assert first.records[0]["quarter"] == Decimal("0.25")
        assert first.records[0]["object"] == {"n": 1}
