"""The command group: help, start-up, `.env`, and the package's lazy names."""

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest

import batchor_core
from batchor_core.cli import main
from batchor_core.cli.app import _COMMANDS
from tests.cli.commands import ROOT, Shell

HEAVY = {"openai", "polars", "pyarrow", "sqlalchemy", "pydantic", "rich", "dotenv", "starlette"}


def _command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def test_help_lists_every_command_without_importing_what_is_behind_them() -> None:
    """`batchor --help` would take a second."""
    script = (
        "import sys; from batchor_core.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"print('heavy:', *({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy:"
    assert all(f"  {name} " in done.stdout for name in _COMMANDS)


@pytest.mark.parametrize("name", _COMMANDS)
def test_commands_say_of_themselves_what_the_list_says_with_an_example(name: str) -> None:
    """The list of commands and a command's own help would tell different things."""
    command = _command(name)
    assert command.name == name
    assert (command.help or "").splitlines()[0] == _COMMANDS[name][1]
    assert f"\nExample:\n  batchor {name}" in command.get_help(click.Context(command))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["strat"], "No such command 'strat'."),
        (["start"], "Missing option '--input'. See 'batchor start --help'."),
        (["status", "--run-id"], "'--run-id' requires an argument"),
        (["list", "--limit", "0"], "'--limit'"),
        (["list", "--db-path", "a", "--dsn", "b"], "not both"),
        (["list", "--dsn", "postgresql://localhost/x"], "Give --artifacts with --dsn"),
        (["simulate", "--fault", "plague"], "line_error"),
        (["simulate", "--fault", '{"kind": "line_error", "staus": 1}'], "staus"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    shell: Shell, args: list[str], says: str
) -> None:
    """Scripts could not tell a typing error from a failed run, or people would read a page."""
    result = shell.ok(*args, exit_code=2)
    assert result.stderr.startswith("Error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_dotenv_gives_the_key_but_the_environment_wins(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in `.env` would not be found, or would replace the one that was set on purpose."""
    monkeypatch.delenv("OPENAI_API_KEY")
    shell.write(".env", "OPENAI_API_KEY=sk-from-file\nOPENAI_BASE_URL=http://127.0.0.1:9/v1\n")
    (shell.folder / "sub").mkdir()
    monkeypatch.chdir(shell.folder / "sub")
    done = shell.json(*shell.start("--run-id", "r", "--wait", source="../in.csv"))
    assert done["status"] == "succeeded"


def test_an_unreadable_dotenv_is_one_line(shell: Shell) -> None:
    """A broken file that nobody named on the command line would end in a traceback."""
    (shell.folder / ".env").write_bytes(b"KEY=\xff")
    assert "not UTF-8" in shell.ok("list", exit_code=1).stderr


def test_every_public_name_of_the_package_can_be_loaded_and_is_seen_by_type_checkers() -> None:
    """A name would be exported to the type checker only, or at run time only."""
    for name in batchor_core.__all__:
        assert getattr(batchor_core, name).__name__.rpartition(".")[2] == name
    tree = ast.parse(Path(batchor_core.__file__).read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batchor_core")
        for alias in node.names
    }
    assert typed == set(batchor_core.__all__)
    assert dir(batchor_core) == sorted(batchor_core.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = batchor_core.nothing  # type: ignore[attr-defined]
