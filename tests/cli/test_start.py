"""`batchor start`: what becomes of a file of rows."""

import csv
import datetime as dt
import json
import shutil
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from tests.cli.commands import ROOT, Shell

BANKING = ROOT.parent / "shared" / "data" / "banking77" / "test.csv"
COUNTS = {"total", "ok", "failed", "retrying", "in_flight", "ready", "reused"}


def _results(shell: Shell) -> list[dict[str, Any]]:
    lines = shell.ok(*shell.on("results")).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_without_wait_it_sends_and_ends_and_wait_does_the_rest(shell: Shell) -> None:
    """A script could not hand rows in and fetch the answers later."""
    started = shell.json(*shell.start("--run-id", "r"))
    assert started == {
        "run_id": "r",
        "status": "running",
        "control_state": "run",
        "control_reason": None,
        "counts": dict.fromkeys(COUNTS, 0) | {"total": 3, "in_flight": 3},
        "cost_usd": 0.0,
    }
    done = shell.json(*shell.on("wait"))
    assert (done["status"], done["counts"]["ok"]) == ("succeeded", 3)
    assert done["cost_usd"] > 0


def test_without_a_run_id_it_names_the_run_and_says_how_to_wait(shell: Shell) -> None:
    """A run would be under way that nobody can name."""
    result = shell.ok(*shell.start())
    run_id = result.stdout.splitlines()[0].removeprefix("Run ").partition(":")[0]
    assert f"batchor wait --run-id {run_id} --db-path {shell.db}" in result.stderr
    assert shell.ok(*shell.on("wait", run_id)).stdout.startswith(f"Run {run_id}: succeeded")


@pytest.mark.parametrize(
    ("options", "prompts"),
    [
        (["--prompt-field", "text"], ["Lost card", "No cash", "Broken card"]),
        (["--prompt-field", "odd name"], ["one", "two", "three"]),
        (["--prompt-template", "{id}: {text}"], ["a: Lost card", "b: No cash", "c: Broken card"]),
    ],
)
def test_prompts_come_from_a_column_of_any_name_or_from_a_template(
    shell: Shell, options: list[str], prompts: list[str]
) -> None:
    """Columns whose names are no identifiers could not be asked about."""
    args = shell.start("--run-id", "r", "--wait", "--keep", "odd name")
    at = args.index("--prompt-field")
    shell.ok(*args[:at], *options, *args[at + 2 :])
    rows = _results(shell)
    assert [row["output_text"].rpartition("to: ")[2] for row in rows] == prompts
    assert [row["odd name"] for row in rows] == ["one", "two", "three"]


def test_keep_all_keeps_the_types_of_parquet(shell: Shell) -> None:
    """Dates and numbers of a typed input would come back as text."""
    day = dt.date(2025, 6, 1)
    frame = pl.DataFrame(
        {
            "id": [1, 2],
            "text": ["x", "y"],
            "day": [day, None],
            "tags": [["a"], []],
            "kind": pl.Series(["k", "k"], dtype=pl.Categorical),
        }
    )
    frame.write_parquet("in.parquet")
    shell.ok(*shell.start("--run-id", "r", "--wait", "--keep", "all", source="in.parquet"))
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    kept = pl.read_parquet("out.parquet", columns=frame.columns)
    assert kept.rows() == frame.rows()
    assert [str(kept.schema[name]) for name in ("id", "day")] == ["Int64", "Date"]


def test_jsonl_keeps_text_in_the_columns_that_are_named(shell: Shell) -> None:
    """What a JSON value becomes would depend on the rows around it."""
    shell.write("in.jsonl", '{"id": 7, "text": "x", "n": 1}\n{"id": 8, "text": "y", "n": [2]}\n')
    keep = ["--keep", "n", "--keep", "id"]
    shell.ok(*shell.start("--run-id", "r", "--wait", *keep, source="in.jsonl"))
    assert [(r["item_id"], r["n"], r["id"]) for r in _results(shell)] == [
        ("7", "1", "7"),
        ("8", "[2]", "8"),
    ]


def test_the_output_model_is_found_in_the_working_folder_also_by_later_commands(
    shell: Shell,
) -> None:
    """`--structured-output-class` would need PYTHONPATH, or `wait` and `results` would fail."""
    model = ["--structured-output-class", "labels_of_test:Label", "--schema-name", "label"]
    assert shell.run(*shell.start("--run-id", "r", *model)).returncode == 0
    assert shell.run(*shell.on("wait")).returncode == 0
    rows = [json.loads(line) for line in shell.run(*shell.on("results")).stdout.splitlines()]
    assert {row["topic"] for row in rows} <= {"card", "cash"}
    assert all(isinstance(row["urgent"], bool) for row in rows)


def test_options_reach_the_request_and_the_policies(shell: Shell) -> None:
    """An option would be accepted and do nothing."""
    shell.ok(
        *shell.start(
            "--run-id",
            "r",
            "--params",
            '{"temperature": 0.5, "max_output_tokens": 64}',
            "--system",
            "Be brief.",
        ),
        *("--chunk-max-requests", "2", "--chunk-max-bytes", "5000", "--chunk-max-tokens", "4000"),
        *("--max-attempts", "4", "--max-rounds", "5", "--retry-delay", "6"),
        *("--settle-seconds", "7", "--lease-seconds", "8", "--poll-interval", "9"),
        *("--enqueued-token-limit", "10000", "--on-lost", "resend", "--on-unresolved", "wait"),
        *("--base-url", shell.sim.openai_base_url),
    )
    with shell.store() as store:
        spec = store.get_run("r").spec
        chunks = store.list_chunks("r")
    assert [chunk.item_count for chunk in chunks] == [2, 1]
    config = spec["provider_config"]
    assert config["params"] == {"temperature": 0.5}
    assert config["max_output_tokens"] == 64
    assert config["base_url"] == shell.sim.openai_base_url
    assert config["enqueue_limit"]["max_tokens"] == 10000
    assert spec["system_prompt"] == "Be brief."
    assert spec["chunk_policy"] == {"max_requests": 2, "max_bytes": 5000, "max_tokens": 4000}
    retry = spec["retry_policy"]
    assert (retry["max_attempts"], retry["max_rounds"], retry["delay_s"]) == (4, 5, 6)
    timing = spec["timing"]
    assert (timing["settle_s"], timing["lease_s"], timing["poll_s"]) == (7, 8, 9)
    assert spec["on_lost"] == "resend"
    assert spec["on_unresolved"] == "wait"


def test_an_input_without_rows_succeeds_with_an_empty_table(shell: Shell) -> None:
    """A pipeline would fail on a day without data."""
    shell.write("in.csv", "id,text\n")
    assert shell.json(*shell.start("--run-id", "r", "--wait"))["status"] == "succeeded"
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    assert pl.read_parquet("out.parquet").height == 0


def test_failed_items_are_status_3(shell: Shell) -> None:
    """A script would take a run with failed rows for a complete one."""
    shell.sim.faults(kind="refusal", match={"prompt": "cash"})
    done = shell.json(*shell.start("--run-id", "r", "--wait"), exit_code=3)
    assert done["status"] == "completed_with_failures"
    assert (done["counts"]["ok"], done["counts"]["failed"]) == (2, 1)
    shell.ok(*shell.start("--run-id", "r"), exit_code=3)
    shell.ok(*shell.on("status"), exit_code=3)
    assert [row["batch_status"] for row in _results(shell)] == ["ok", "failed", "ok"]


@pytest.mark.parametrize("wait", [["--wait"], []])
def test_a_refused_key_pauses_the_run_with_status_4(
    shells: Callable[..., Shell], monkeypatch: pytest.MonkeyPatch, wait: list[str]
) -> None:
    """A run would be lost, or waited for in vain, for a key that only needs to be mended."""
    shell = shells(api_key="sk-test")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    result = shell.ok(*shell.start("--run-id", "r", *wait, "--json"), exit_code=4)
    paused = json.loads(result.stdout)
    assert (paused["control_state"], paused["counts"]["ready"]) == ("pause", 3)
    assert "sk-wrong" not in result.stderr + paused["control_reason"]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    shell.ok(*shell.on("resume"))
    assert shell.json(*shell.on("wait"))["counts"]["ok"] == 3


def test_running_out_of_time_is_status_6_and_the_run_goes_on(
    shells: Callable[..., Shell],
) -> None:
    """A time-out would look like a failure, or take the run with it."""
    shell = shells(batch_seconds=60)
    result = shell.ok(*shell.start("--run-id", "r", "--wait", "--timeout", "0.3"), exit_code=6)
    assert "it goes on" in result.stderr
    assert result.stdout.startswith("Run r: running")
    shell.ok(*shell.on("wait", "r", "--timeout", "0.1"), exit_code=6)
    shell.sim.advance_time(60)
    assert shell.json(*shell.on("wait"))["status"] == "succeeded"


def test_the_same_command_again_sends_nothing(shell: Shell) -> None:
    """A repeated command would pay for everything a second time."""
    command = shell.start("--run-id", "r", "--wait")
    shell.ok(*command)
    executed, files = shell.sim.ledger().executed(), len(shell.at_provider("files"))
    assert shell.json(*command)["counts"]["ok"] == 3
    assert (shell.sim.ledger().executed(), len(shell.at_provider("files"))) == (executed, files)


@pytest.mark.skipif(not BANKING.exists(), reason="the data set is not here")
def test_two_hundred_real_rows_come_back_in_input_order_and_are_sent_once(shell: Shell) -> None:
    """The command line's first promise: one row out for each row in, in order, paid once."""
    with BANKING.open(newline="") as file:
        queries = list(csv.DictReader(file))[:200]
    with (shell.folder / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows([f"q{n}", query["text"]] for n, query in enumerate(queries))
    command = shell.start("--run-id", "r", "--wait", "--keep", "text", "--chunk-max-requests", "90")
    first = shell.run(*command)
    assert first.returncode == 0, first.stderr
    assert shell.run(*shell.on("results", "r", "--output", "out.parquet")).returncode == 0
    table = pl.read_parquet("out.parquet")
    assert table["item_id"].to_list() == [f"q{n}" for n in range(200)]
    assert table["text"].to_list() == [query["text"] for query in queries]
    assert table["output_text"].null_count() == 0
    assert shell.run(*command).returncode == 0
    assert (shell.sim.ledger().executed(), shell.sim.ledger().paid_twice()) == (200, [])


def test_a_run_that_was_stopped_for_good_is_status_1_with_the_reason(shell: Shell) -> None:
    """A run that can never finish would look like one with a few failed rows."""
    shell.ok(*shell.start("--run-id", "r"))
    shutil.rmtree(shell.folder / "artifacts")
    shell.sim.advance_time(10)
    shell.ok(*shell.on("cancel"))
    result = shell.ok(*shell.on("wait", "r", "--json"), exit_code=1)
    assert json.loads(result.stdout)["status"] == "failed"
    assert "Error: run 'r' was stopped: " in result.stderr
    assert "  error: " in shell.ok(*shell.on("status"), exit_code=1).stdout


def test_on_change_supersedes(shell: Shell) -> None:
    """A mended input could only be run under another id, beside the old run's batches."""
    shell.ok(*shell.start("--run-id", "r", "--wait"))
    shell.write("in.csv", "id,text\na,Another text\n")
    refused = shell.call(*shell.start("--run-id", "r", "--wait"))
    assert refused.exit_code == 1
    assert "choose another run id" in refused.stderr

    done = shell.json(*shell.start("--run-id", "r", "--on-change", "supersede", "--wait"))
    assert (done["run_id"], done["status"]) == ("r.2", "succeeded")
    assert done["counts"]["total"] == 1


def test_earlier_answers_are_reused_when_asked(shell: Shell) -> None:
    """A job that is run again would be paid for again, or never be asked anew."""
    shell.ok(*shell.start("--run-id", "one", "--wait"))
    again = shell.json(*shell.start("--run-id", "two", "--wait", "--reuse"))
    assert again["counts"]["reused"] == 3
    assert again["cost_usd"] == 0.0
    anew = shell.json(*shell.start("--run-id", "three", "--wait", "--no-reuse"))
    assert anew["counts"]["reused"] == 0
    shell.write("in.csv", "id,text\na,Same\nb,Same\nc,Same\n")
    once = shell.json(*shell.start("--run-id", "four", "--wait", "--deduplicate"))
    assert once["counts"]["reused"] == 2
    assert shell.sim.ledger().executed() == 7
