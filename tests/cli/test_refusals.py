"""What a user can do wrong: one line on stderr, and nothing was sent."""

from pathlib import Path

import pytest

from tests.cli.commands import Shell


def _is_refused(shell: Shell, args: list[str], *says: str, exit_code: int = 1) -> None:
    result = shell.ok(*args, exit_code=exit_code)
    assert result.stdout == ""
    *warnings, line = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert all(warning.startswith("Warning: tokens are estimated") for warning in warnings)
    assert [text for text in says if text not in line] == []
    assert shell.at_provider("files") == shell.at_provider("batches") == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompt-field", "txt"], "no column 'txt' in in.csv; it has: id, text, topic, odd name"),
        (["--id-field", "key"], "no column 'key' in in.csv; it has: id, text, topic, odd name"),
        (["--keep", "tpic"], "no column 'tpic' in in.csv; it has: id, text, topic, odd name"),
        (["--input", "gone.csv"], "cannot read gone.csv: No such file or directory"),
        (["--input", "in.xlsx"], "must end in .csv, .jsonl"),
        (["--structured-output-class", "labels_of_test:Lable"], "has no attribute 'Lable'"),
        (["--structured-output-class", "labels_of_tset:Label"], "labels_of_tset"),
        (["--structured-output-class", "broken:Label"], "SyntaxError"),
        (["--structured-output-class", "json:JSONDecoder"], "no pydantic model"),
        (["--structured-output-class", "labels_of_test:Odd"], "anything"),
        (["--params", '{"model": "m"}'], "params: model: set by the job itself"),
        (["--base-url", "localhost:80"], "base_url: give an absolute URL"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_recorded(
    shell: Shell, options: list[str], says: str
) -> None:
    """A user would get a traceback, or a half-done run, for a spelling mistake."""
    shell.write("broken.py", "class Label(\n")
    _is_refused(shell, shell.start("--run-id", "r", *options), says)
    with shell.store() as store:
        assert store.list_runs() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--params", "{nope}"], "Invalid value for '--params': not JSON"),
        (["--params", "[1]"], "no JSON object"),
        (["--prompt-template", "{text}"], "one of --prompt-field and --prompt-template"),
        (["--schema-name", "s"], "Give --structured-output-class"),
        (["--timeout", "3"], "Give --wait with --timeout"),
        (["--provider", "acme"], "'acme' is not one of 'openai', 'anthropic', 'gemini'"),
        (["--max-attempts", "0"], "'--max-attempts'"),
        (["--dry"], "No such option '--dry'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(shell: Shell, options: list[str], says: str) -> None:
    """A wrong option would be ignored, or reported as if the run had failed."""
    _is_refused(shell, shell.start(*options), says, "batchor start --help", exit_code=2)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("in.csv", "id,text\na,x\nb,y\na,z\n", "item id(s) stand in more than one row: 'a'"),
        ("in.csv", "id,text\na,x\n,y\n", "in.csv, line 3: the id column 'id' is empty"),
        ("in.csv", "id,text\na,x,y\n", "in.csv, line 2: 3 values where the header has 2"),
        ("in.csv", "", "in.csv is empty"),
        ("in.jsonl", '{"id": "a", "text": "x"}\n{"id":\n', "in.jsonl, line 2: not a JSON object"),
        ("in.jsonl", "", "in.jsonl has no rows"),
        ("in.parquet", "PAR?", "cannot read in.parquet"),
    ],
)
def test_an_unusable_file_is_refused_with_its_name_and_line(
    shell: Shell, name: str, text: str, says: str
) -> None:
    """Half of a broken file would be sent and paid for."""
    shell.write(name, text)
    _is_refused(shell, shell.start("--run-id", "r", source=name), says)


def test_a_mended_file_can_be_sent_under_the_same_run_id(shell: Shell) -> None:
    """A run id would be burnt by the first mistake in a file."""
    shell.write("in.csv", "id,text\na,x\na,y\n")
    _is_refused(shell, shell.start("--run-id", "r"), "stand in more than one row")
    shell.write("in.csv", "id,text\na,x\nb,y\n")
    assert shell.json(*shell.start("--run-id", "r", "--wait"))["counts"]["ok"] == 2


def test_a_missing_key_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user would have to guess from a traceback of the SDK what is missing."""
    monkeypatch.delenv("OPENAI_API_KEY")
    _is_refused(shell, shell.start(), "no OpenAI key: set OPENAI_API_KEY")


def test_other_input_under_a_known_run_id_is_refused(shell: Shell) -> None:
    """Answers to old rows would be taken for answers to new ones."""
    shell.ok(*shell.start("--run-id", "r", "--wait"))
    executed = shell.sim.ledger().executed()
    again = shell.ok(*shell.start("--run-id", "r", "--prompt-field", "topic"), exit_code=1)
    assert "Error: run 'r' exists with other input rows or prompts" in again.stderr
    again = shell.ok(*shell.start("--run-id", "r", "--model", "gpt-4.1"), exit_code=1)
    assert "Error: run 'r' exists with another model" in again.stderr
    assert shell.sim.ledger().executed() == executed


@pytest.mark.parametrize("command", ["status", "wait", "results", "pause", "resume", "cancel"])
def test_an_unknown_run_is_one_line(shell: Shell, command: str) -> None:
    """A mistyped run id would end in a traceback."""
    shell.store().close()
    _is_refused(shell, shell.on(command, "nope"), "no run 'nope' in store")


def test_a_state_that_does_not_exist_is_not_made_by_looking_at_it(shell: Shell) -> None:
    """A mistyped path would leave empty databases behind."""
    _is_refused(shell, shell.on("status"), f"{str(shell.db)!r} does not exist")
    assert not shell.db.exists()


def test_a_state_that_is_no_database_is_one_line(shell: Shell) -> None:
    """A mistyped path would end in a traceback of the database driver."""
    shell.write("state.sqlite3", "certainly no database, but long enough to be looked at" * 20)
    _is_refused(shell, shell.start(), "the file is no SQLite database")


def test_results_cannot_be_written_to_an_unknown_format(shell: Shell, tmp_path: Path) -> None:
    """A user would get a file in a format that nobody asked for."""
    shell.ok(*shell.start("--run-id", "r", "--wait"))
    result = shell.ok(*shell.on("results", "r", "--output", "out.xlsx"), exit_code=1)
    assert "end it in .csv, .jsonl, .parquet" in result.stderr
    result = shell.ok(*shell.on("results", "r", "--output", "gone/out.csv"), exit_code=1)
    assert "cannot write 'gone/out.csv': No such file" in result.stderr


def test_refused_input_leaves_no_run_in_progress(shell: Shell) -> None:
    """The list of runs would fill up with runs that nobody can name or end."""
    shell.write("in.csv", "id,text\na,one\na,two\n")
    assert shell.call(*shell.start()).exit_code == 1
    (run,) = shell.json("list", "--db-path", str(shell.db))
    assert run["status"] == "cancelled"
