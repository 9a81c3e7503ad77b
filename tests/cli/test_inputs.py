"""What `batchor start --input` takes: several files, folders, patterns, other encodings."""

import polars as pl
import pytest

from tests.cli.commands import Shell

START = ("--run-id", "r", "--wait")


def _table(shell: Shell) -> pl.DataFrame:
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    return pl.read_parquet(shell.folder / "out.parquet")


def test_several_inputs_are_one_run_in_their_order(shell: Shell) -> None:
    """Rows of two files with the same keys could not be told apart."""
    shell.write("more.jsonl", '{"id": "a", "text": "Another?", "topic": "cash"}\n')
    files = ["--input", "more.jsonl", "--input", "in.csv"]
    shell.ok(*shell.start(*START, *files, "--keep", "topic"))
    table = _table(shell)
    assert table["item_id"].to_list() == ["0:a", "1:a", "1:b", "1:c"]
    assert table["topic"][0] == "cash"
    assert table["batch_status"].to_list() == ["ok"] * 4


def test_other_inputs_under_a_known_run_id_are_refused(shell: Shell) -> None:
    """Results for the old files would be handed out for the new ones."""
    shell.write("more.csv", "id,text\nz,Another?\n")
    both = ["--input", "in.csv", "--input", "more.csv"]
    shell.ok(*shell.start(*START, *both))
    shell.ok(*shell.start(*START, *both))
    again = shell.ok(*shell.start(*START, *both[2:], *both[:2]), exit_code=1)
    assert "exists with other input rows" in again.stderr


@pytest.mark.parametrize("place", ["parts", "parts/*.csv", "p*s"])
def test_folders_and_patterns(shell: Shell, place: str) -> None:
    """A table of many files would need a program, or a run a file."""
    (shell.folder / "parts").mkdir()
    for name in ("b", "a"):
        shell.write(f"parts/{name}.csv", f"id,text\n{name},Why {name}?\n")
    shell.ok(*shell.start(*START, "--input", place))
    assert _table(shell)["item_id"].to_list() == ["a", "b"]


def test_another_encoding(shell: Shell) -> None:
    """A file from a spreadsheet could not be read, or became garbled."""
    (shell.folder / "old.csv").write_bytes("id,text\na,caf\xe9?\n".encode("cp1252"))
    refused = shell.ok(*shell.start(*START, "--input", "old.csv"), exit_code=1)
    assert "old.csv, line 2: not UTF-8 (byte 0xe9): name its encoding" in refused.stderr
    more = ["--encoding", "cp1252", "--keep", "text"]
    shell.ok(*shell.start(*START, "--input", "old.csv", *more))
    assert _table(shell)["text"].to_list() == ["caf\xe9?"]
    unknown = shell.ok(*shell.start("--encoding", "cp9"), exit_code=1)
    assert "there is no text encoding 'cp9'" in unknown.stderr


@pytest.mark.parametrize("option", ["--prompt-field", "--keep"])
def test_the_input_that_lacks_a_column_is_named(shell: Shell, option: str) -> None:
    """Nobody would know which of ten files to look at."""
    shell.write("more.csv", "id,text\nz,Another?\n")
    start = shell.start("--input", "in.csv", "--input", "more.csv", option, "topic")
    result = shell.ok(*start, exit_code=1)
    assert "no column 'topic' in more.csv (source 1); it has: id, text" in result.stderr


def test_an_empty_one_among_several_inputs_is_named(shell: Shell) -> None:
    """An empty file among the inputs would be taken for one without the columns."""
    shell.write("none.jsonl", "\n")
    result = shell.ok(*shell.start("--input", "in.csv", "--input", "none.jsonl"), exit_code=1)
    assert "none.jsonl has no rows" in result.stderr
