"""`status`, `list`, `wait`, `results`, `pause`, `resume` and `cancel`."""

import json
from collections.abc import Callable

import polars as pl
import pytest

from tests.cli.commands import Shell, until


def test_status_and_results_need_no_key(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever only looks at a run, or fetches its answers, would need the provider's key."""
    shell.ok(*shell.start("--run-id", "r", "--wait"))
    monkeypatch.delenv("OPENAI_API_KEY")
    assert shell.json(*shell.on("status"))["status"] == "succeeded"
    assert shell.ok("list", "--db-path", str(shell.db)).stdout.count("r ") == 1
    assert shell.ok(*shell.on("results")).stdout.count("\n") == 3


def test_status_reads_the_store_and_refresh_asks_the_provider(shell: Shell) -> None:
    """`status` would be slow and need the network, or `--refresh` would show old news."""
    shell.ok(*shell.start("--run-id", "r"))
    shell.sim.advance_time(10)
    assert shell.json(*shell.on("status"))["counts"]["in_flight"] == 3

    def collected() -> bool:
        return bool(shell.json(*shell.on("status", "r", "--refresh"))["counts"]["ok"] == 3)

    until(collected)
    assert shell.ok(*shell.on("status")).stdout.splitlines()[:2] == [
        "Run r: succeeded",
        "  items: 3 (3 ok)",
    ]


def test_list_shows_the_newest_first(shell: Shell) -> None:
    """Runs whose ids were forgotten could not be found again."""
    assert shell.ok("list").stdout == "No batch runs yet.\n"
    for run_id in ("first", "second"):
        shell.ok(*shell.start("--run-id", run_id))
    where = ("--db-path", str(shell.db))
    listed = shell.json("list", *where)
    assert [(run["run_id"], run["counts"]["total"]) for run in listed] == [
        ("second", 3),
        ("first", 3),
    ]
    assert listed[0]["created_at"] > listed[1]["created_at"]
    header, line = shell.ok("list", *where, "--limit", "1").stdout.splitlines()
    assert header.split() == ["RUN", "STATUS", "ITEMS", "COST", "STARTED"]
    assert line.startswith("second  running  3 (3 in flight)  $0.000000")


def test_results_of_an_unfinished_run_are_refused(shells: Callable[..., Shell]) -> None:
    """Half of the rows would be taken for all of them."""
    shell = shells(batch_seconds=60)
    shell.ok(*shell.start("--run-id", "r"))
    for more in ([], ["--output", "out.csv"]):
        result = shell.ok(*shell.on("results", "r", *more), exit_code=1)
        assert result.stdout == ""
        assert result.stderr.startswith("Error: run 'r' is running; results are complete once")
    assert not (shell.folder / "out.csv").exists()


def test_results_are_the_same_in_every_format(shell: Shell) -> None:
    """The same answers would look different to different tools."""
    shell.ok(*shell.start("--run-id", "r", "--wait", "--keep", "topic"))
    for suffix in ("parquet", "jsonl", "csv"):
        result = shell.ok(*shell.on("results", "r", "--output", f"out.{suffix}"))
        assert (result.stdout, result.stderr) == ("", f"3 rows in out.{suffix}\n")
    columns = ["item_id", "topic", "output_text", "batch_status"]
    table = pl.read_parquet("out.parquet", columns=columns)
    assert table["item_id"].to_list() == ["a", "b", "c"]
    assert pl.read_csv("out.csv", columns=columns).equals(table)
    printed = shell.ok(*shell.on("results")).stdout
    assert printed == (shell.folder / "out.jsonl").read_text()
    assert json.loads(printed.splitlines()[1])["output_text"] == table["output_text"][1]


def test_a_paused_run_waits_for_resume(shells: Callable[..., Shell]) -> None:
    """A run could not be held back, or not be set going again."""
    shell = shells(batch_seconds=60)
    shell.ok(*shell.start("--run-id", "r"))
    assert shell.json(*shell.on("pause"))["control_state"] == "pause"
    result = shell.ok(*shell.on("wait"), exit_code=4)
    assert "run 'r' is paused: paused by hand; resume it" in result.stderr
    assert "Run r: running, paused (paused by hand)" in result.stdout
    shell.ok(*shell.on("status"), exit_code=4)
    assert shell.json(*shell.on("resume"))["control_state"] == "run"
    shell.sim.advance_time(60)
    shell.ok(*shell.on("wait"))
    result = shell.ok(*shell.on("pause"), exit_code=1)
    assert result.stderr == "Error: run 'r' is finished already (succeeded)\n"


def test_a_cancelled_run_tells_the_provider_at_once_and_ends_with_status_5(
    shells: Callable[..., Shell],
) -> None:
    """A cancelled run would go on to be executed and paid for at the provider."""
    shell = shells(batch_seconds=60)
    shell.ok(*shell.start("--run-id", "r"))
    result = shell.ok(*shell.on("cancel", "r", "--json"))
    assert json.loads(result.stdout)["control_state"] == "cancel"
    assert f"batchor wait --run-id r --db-path {shell.db}" in result.stderr
    assert [batch["status"] for batch in shell.at_provider("batches")] == ["cancelling"]
    result = shell.ok(*shell.on("resume"), exit_code=1)
    assert result.stderr == "Error: run 'r' is being cancelled: nothing can undo that\n"
    shell.sim.advance_time(60)
    done = shell.json(*shell.on("wait"), exit_code=5)
    assert (done["status"], done["counts"]["failed"]) == ("cancelled", 3)
    shell.ok(*shell.on("status"), exit_code=5)
    assert shell.ok(*shell.on("results")).stdout.count('"run_cancelled"') == 3


def test_wait_says_that_a_half_read_run_needs_its_input_again(shell: Shell) -> None:
    """`wait` would hang on a run whose input was never read to its end."""
    shell.write("in.csv", "id,text\na,x\na,y\n")
    shell.ok(*shell.start("--run-id", "r"), exit_code=1)
    result = shell.ok(*shell.on("wait"), exit_code=1)
    assert "start it again with the same job and run_id" in result.stderr


def test_reconcile_tells_what_became_of_each_batch(shell: Shell) -> None:
    """After a restore nobody could tell whether anything would be paid twice."""
    shell.ok(*shell.start("--run-id", "r", "--wait"))
    place = ("--db-path", str(shell.db))
    (found,) = shell.json("reconcile", *place)
    assert (found["run_id"], found["finding"]) == ("r", "known")
    assert "1 of 1 batches are of runs in this store." in shell.ok("reconcile", *place).stdout
