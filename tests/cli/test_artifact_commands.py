"""`retry`, `export-artifacts`, `prune-artifacts`, `results --append` and `completion`."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import polars as pl
import pytest

from batchor_core.cli import main
from tests.cli.commands import ROOT, Shell

FAILING = {"kind": "line_error", "status": 400, "match": {"prompt": "No cash"}}


@pytest.fixture
def failed(shell: Shell) -> Shell:
    """A shell in which run `r` is finished with one failed item."""
    shell.sim.faults(FAILING)
    shell.ok(*shell.start("--run-id", "r", "--wait", "--keep", "topic"), exit_code=3)
    shell.sim.clear_faults()
    return shell


class TestRetry:
    def test_asks_the_failed_items_and_combines(self, failed: Shell) -> None:
        """People would have to cut the failed rows out of their input by hand."""
        done = failed.json(*failed.on("retry", "r", "--wait"))
        assert (done["run_id"], done["status"], done["counts"]["total"]) == (
            "r.retry-1",
            "succeeded",
            1,
        )
        failed.ok(*failed.on("results", "r", "--combined", "--output", "all.parquet"))
        table = pl.read_parquet("all.parquet")
        assert table["item_id"].to_list() == ["a", "b", "c"]
        assert set(table["batch_status"]) == {"ok"}
        printed = failed.ok(*failed.on("results", "r", "--combined")).stdout
        assert printed.count('"batch_status": "ok"') == 3
        assert failed.ok(*failed.on("results")).stdout.count('"ok"') == 2

    def test_without_wait_it_sends_and_says_how_to_go_on(
        self, shells: Callable[..., Shell]
    ) -> None:
        """Whoever does not wait would not know the new run's id."""
        shell = shells(batch_seconds=60)
        shell.sim.faults(FAILING)
        shell.ok(*shell.start("--run-id", "r"))
        shell.sim.advance_time(60)
        shell.ok(*shell.on("wait"), exit_code=3)
        shell.sim.clear_faults()
        result = shell.ok(*shell.on("retry", "r", "--new-run-id", "again"))
        assert "Run again: running" in result.stdout
        assert f"batchor wait --run-id again --db-path {shell.db}" in result.stderr
        repeated = shell.json(*shell.on("retry", "r", "--new-run-id", "again"))
        assert repeated["counts"]["in_flight"] == 1

    def test_only_some_codes(self, failed: Shell) -> None:
        """A typing error in a code would retry everything, or nothing in silence."""
        result = failed.ok(*failed.on("retry", "r", "--only", "nonsense"), exit_code=1)
        assert result.stderr.startswith("Error: run 'r' has no failed item with nonsense")
        (code,) = {
            line["batch_error_code"]
            for line in map(json.loads, failed.ok(*failed.on("results")).stdout.splitlines())
            if line["batch_error_code"]
        }
        failed.ok(*failed.on("retry", "r", "--only", code, "--wait"))
        again = failed.ok(*failed.on("retry"), exit_code=1)
        assert "run 'r.retry-1' has taken them" in again.stderr

    def test_wrong_options(self, failed: Shell) -> None:
        """A time-out without waiting would be ignored."""
        result = failed.ok(*failed.on("retry", "r", "--timeout", "5"), exit_code=2)
        assert "Give --wait with --timeout." in result.stderr


class TestAppend:
    def test_what_has_finished_is_added(self, shells: Callable[..., Shell]) -> None:
        """A dashboard would have to wait for the last batch of a long run."""
        shell = shells(batch_seconds=60)
        shell.ok(*shell.start("--run-id", "r", "--chunk-max-requests", "1"))
        follow = shell.on("results", "r", "--append", "--output", "out.jsonl")
        assert shell.ok(*follow).stderr == "0 more rows in out.jsonl; the run goes on\n"
        shell.sim.advance_time(60)
        shell.ok(*shell.on("wait"))
        assert shell.ok(*follow).stderr == "3 more rows in out.jsonl\n"
        assert shell.ok(*follow).stderr == "0 more rows in out.jsonl\n"
        assert (shell.folder / "out.jsonl").read_text().count("\n") == 3

    @pytest.mark.parametrize("more", [[], ["--combined", "--output", "x.jsonl"]])
    def test_wrong_options(self, failed: Shell, more: list[str]) -> None:
        """Options that exclude each other would be ignored in silence."""
        result = failed.ok(*failed.on("results", "r", "--append", *more), exit_code=2)
        assert "Give --output with --append" in result.stderr


class TestArtifacts:
    def test_export_then_prune_without_a_key(
        self, failed: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever keeps house would need the provider's key."""
        monkeypatch.delenv("OPENAI_API_KEY")
        refused = failed.ok(*failed.on("prune-artifacts"), exit_code=1)
        assert refused.stderr.startswith("Error: the raw answers of run 'r' were never exported")
        done = failed.json(*failed.on("export-artifacts", "r", "--output", "archive"))
        assert done["run_id"] == "r"
        manifest = json.loads((failed.folder / "archive" / done["manifest"]).read_text())
        assert len(manifest["files"]) == done["files"]
        would = failed.ok(*failed.on("prune-artifacts", "r", "--dry-run"))
        assert "WOULD GO" in would.stdout
        assert "bytes would be removed." in would.stdout
        (pruned,) = failed.json(*failed.on("prune-artifacts"))
        assert (pruned["run_id"], pruned["kinds"]) == ("r", ["raw", "requests"])
        assert pruned["size_bytes"] == done["size_bytes"]
        assert failed.ok(*failed.on("results")).stdout.count("\n") == 3
        result = failed.ok(*failed.on("export-artifacts", "r", "--output", "x"), exit_code=1)
        assert "were pruned" in result.stderr

    def test_by_age(self, failed: Shell) -> None:
        """A nightly clean-up would remove what is still wanted, or hide what it could not."""
        where = ("--db-path", str(failed.db))
        kept = failed.ok("prune-artifacts", "--older-than", "1d", *where)
        assert kept.stdout == "0 bytes were removed.\n"
        refused = failed.ok("prune-artifacts", "--older-than", "0m", *where, exit_code=1)
        assert "never exported" in refused.stdout
        failed.ok("prune-artifacts", "--older-than", "0m", "--kind", "requests", *where)
        other = failed.json(
            "prune-artifacts", "--older-than", "0m", "--namespace", "nobody", *where
        )
        assert other == []
        assert not (failed.folder / "artifacts" / "runs" / "r" / "requests").exists()

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            ([], "Give --run-id or --older-than."),
            (["--run-id", "r", "--older-than", "1d"], "Give --run-id or --older-than."),
            (["--older-than", "soon"], "--older-than soon is no age"),
            (["--run-id", "r", "--kind", "all"], "'all' is not one of"),
        ],
    )
    def test_wrong_options(self, failed: Shell, args: list[str], says: str) -> None:
        """A typing error would remove the wrong files."""
        result = failed.ok("prune-artifacts", *args, "--db-path", str(failed.db), exit_code=2)
        assert says in result.stderr


class TestCompletion:
    @pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
    def test_scripts(self, shell: Shell, shell_name: str) -> None:
        """A script would be printed that no shell takes."""
        script = shell.ok("completion", shell_name).stdout
        assert f"_BATCHOR_COMPLETE={shell_name}_complete" in script
        assert "batchor" in script

    def test_a_shell_completes_commands(self, shell: Shell) -> None:
        """The script would ask in words that the program does not know."""
        env = {
            "_BATCHOR_COMPLETE": "bash_complete",
            "COMP_WORDS": "batchor prune",
            "COMP_CWORD": "1",
        }
        program = "import sys; sys.argv = ['batchor']; from batchor_core.cli import main; main()"
        done = subprocess.run(
            ["python", "-c", program],
            cwd=shell.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines() == ["plain,prune-artifacts"]


def _example(name: str) -> list[str]:
    command = main.get_command(click.Context(main), name)
    lines: str = command.example  # type: ignore[union-attr]
    return lines.splitlines()


@pytest.mark.parametrize("name", ["retry", "export-artifacts", "prune-artifacts", "completion"])
def test_the_examples_work_as_they_are_written(shell: Shell, name: str) -> None:
    """People would paste an example from the help, and it would fail."""
    shell.sim.faults(FAILING)
    usual = [*shell.start("--run-id", "tickets", "--wait"), "--db-path"]
    home = Path(os.environ["BATCHOR_HOME"])
    shell.ok(*usual, str(home / "state.sqlite3"), exit_code=3)
    shell.sim.clear_faults()
    if name == "prune-artifacts":
        shell.ok("export-artifacts", "--run-id", "tickets", "--output", "archive")
    _install(shell.folder)
    script = " && ".join(_example(name))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=shell.folder,
        env={**os.environ, "PATH": f"{shell.folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _install(folder: Path) -> None:
    """Put the command on the path, whether or not the package is installed."""
    program = folder / "bin" / "batchor"
    program.parent.mkdir()
    python = shutil.which("python")
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{python}" -m batchor_core.cli "$@"\n')
    program.chmod(0o755)
