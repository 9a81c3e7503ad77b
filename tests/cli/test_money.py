"""`batchor estimate`, `batchor costs`, and budgets on the command line."""

import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from batchor_core.cli import main
from tests.cli.commands import Shell

BOUND = ["--params", '{"max_output_tokens": 100}']
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")


def _estimate(shell: Shell, *more: str) -> list[str]:
    """The usual arguments of `estimate`, which are those of `start`."""
    return ["estimate", *shell.start(*more)[1:]]


def _nothing_sent(shell: Shell) -> bool:
    return not shell.at_provider("batches") and not shell.at_provider("files")


def _example(name: str) -> list[str]:
    """The example in a command's help, as a shell would split it."""
    command: Any = main.get_command(click.Context(main), name)
    words = shlex.split(command.example.replace("\\\n", " "))
    assert words[0] == "batchor"
    return words[1:]


@pytest.mark.parametrize("name", ["estimate", "costs"])
def test_the_example_in_the_help_works(shell: Shell, name: str) -> None:
    """The first thing that people try would fail."""
    shell.write("tickets.csv", "id,text\na,Lost card\n")
    assert shell.ok(*_example(name)).stdout


class TestEstimate:
    def test_it_tells_the_cost_without_a_key_and_records_nothing(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To learn what something costs, one would have to pay, or have an account."""
        for name in KEYS:
            monkeypatch.delenv(name, raising=False)
        found = shell.json(*_estimate(shell, *BOUND))
        assert (found["provider"], found["model"]) == ("openai", "gpt-4.1-mini")
        assert (found["rows"], found["chunks"], found["provider_batches"]) == (3, 1, 1)
        assert (found["output_tokens"], found["max_output_tokens"]) == (300, 300)
        assert 0 < found["low_usd"] < found["expected_usd"] == found["high_usd"]
        assert found["realtime_usd"] == pytest.approx(2 * found["expected_usd"])
        assert found["saving_usd"] == pytest.approx(found["expected_usd"])
        assert (found["queue_rounds"], found["longest_h"]) == (None, None)
        assert not shell.db.exists()

    def test_it_says_where_uncertainty_comes_from(self, shell: Shell) -> None:
        """People would take an assumption for a bound."""
        text = shell.ok(*_estimate(shell)).stdout
        assert "nothing was sent" in text
        assert "no upper bound" in text
        assert "genai-prices" in text
        limited = shell.ok(*_estimate(shell, *BOUND, "--enqueued-token-limit", "30")).stdout
        assert "300 at most" in limited
        assert "h at worst" in limited

    def test_an_unknown_price_is_unknown(self, shell: Shell) -> None:
        """A model that nobody knows the price of would be announced as free."""
        args = _estimate(shell, "--model", "no-such-model")
        assert "cost:      unknown" in shell.ok(*args).stdout
        assert shell.json(*args)["expected_usd"] is None

    @pytest.mark.parametrize(
        "options",
        [
            ["--provider", "anthropic", "--model", "claude-sonnet-4-5"],
            ["--provider", "gemini", "--model", "gemini-2.5-flash"],
        ],
    )
    def test_other_providers_without_a_key(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str]
    ) -> None:
        """Only OpenAI's costs could be told in advance."""
        for name in KEYS:
            monkeypatch.delenv(name, raising=False)
        if "anthropic" in options:
            options = [*options, "--anthropic-max-tokens", "100"]
        found = shell.json(*_estimate(shell, *options))
        assert found["rows"] == 3
        assert found["expected_usd"] > 0

    def test_a_dry_run_tells_the_same(self, shell: Shell) -> None:
        """`--dry-run` would send, or promise another cost."""
        dry = shell.json(*shell.start(*BOUND, "--run-id", "r", "--wait", "--dry-run"))
        assert dry == shell.json(*_estimate(shell, *BOUND))
        assert _nothing_sent(shell)
        assert not shell.db.exists()

    @pytest.mark.parametrize("command", ["estimate", "dry-run"])
    def test_a_budget_that_is_too_small_is_said_with_status_1(
        self, shell: Shell, command: str
    ) -> None:
        """A script could not find out in advance that a run would be refused."""
        options = [*BOUND, "--budget-usd", "0.0001"]
        dry = shell.start(*options, "--dry-run")
        result = shell.ok(
            *(dry if command == "dry-run" else _estimate(shell, *options)), exit_code=1
        )
        assert result.stdout.startswith("Estimate for gpt-4.1-mini")
        assert "exceeds the budget of $0.0001" in result.stderr


class TestBudget:
    @pytest.mark.parametrize("wait", [[], ["--wait"]])
    def test_a_budget_below_the_estimate_stops_before_the_first_create(
        self, shell: Shell, wait: list[str]
    ) -> None:
        """Money would be spent on a run that cannot end."""
        needed = shell.json(*_estimate(shell, *BOUND))["reserved_usd"]
        start = shell.start("--run-id", "r", *BOUND, *wait)
        refused = shell.ok(*start, "--budget-usd", f"{needed * 0.9:.6f}", exit_code=1)
        assert refused.stdout == ""
        assert refused.stderr.splitlines()[-1].startswith("Error: run 'r' was not sent: ")
        assert "exceeds the run's budget" in refused.stderr
        assert _nothing_sent(shell)
        assert shell.json(*shell.on("status"), exit_code=4)["control_state"] == "pause"
        shell.ok(*shell.on("wait"), exit_code=1)
        again = shell.json(*start, "--budget-usd", f"{needed:.6f}")
        assert again["control_state"] == "run"
        assert shell.json(*shell.on("wait"))["status"] == "succeeded"

    def test_without_a_name_nothing_is_left_behind(self, shell: Shell) -> None:
        """Each refused command would leave a paused run."""
        shell.ok(*shell.start(*BOUND, "--budget-usd", "0.00001"), exit_code=1)
        (run,) = shell.json("list", "--db-path", str(shell.db))
        assert run["status"] == "cancelled"
        assert _nothing_sent(shell)

    def test_resume_with_a_larger_budget(self, shell: Shell) -> None:
        """A run that was stopped by its budget could only be begun again."""
        shell.ok(*shell.start("--run-id", "r", *BOUND, "--budget-usd", "0.00001"), exit_code=1)
        resumed = shell.json(*shell.on("resume", "r", "--budget-usd", "5"))
        assert (resumed["control_state"], resumed["control_reason"]) == ("run", None)
        assert shell.json(*shell.on("wait"))["status"] == "succeeded"

    def test_the_day_s_budget(self, shell: Shell) -> None:
        """Many small runs together would cost what no one of them may."""
        needed = shell.json(*_estimate(shell, *BOUND))["reserved_usd"]
        day = [*BOUND, "--budget-day-usd", f"{needed * 1.5:.6f}"]
        shell.ok(*shell.start("--run-id", "r", *day))
        result = shell.ok(*shell.start("--run-id", "s", *day), exit_code=1)
        assert "the day's budget" in result.stderr
        assert len(shell.at_provider("batches")) == 1

    def test_a_budget_for_an_unknown_price_is_refused(self, shell: Shell) -> None:
        """A budget would be promised that nobody can hold."""
        unknown = ["--model", "no-such-model", "--run-id", "r"]
        refused = shell.ok(*shell.start(*unknown, "--budget-usd", "5"), exit_code=1)
        assert "price=" in refused.stderr
        shell.ok(*shell.start(*unknown))
        shell.ok(*shell.on("pause"))
        refused = shell.ok(*shell.on("resume", "r", "--budget-usd", "5"), exit_code=1)
        assert "price=" in refused.stderr
        assert shell.json(*shell.on("status"), exit_code=4)["control_state"] == "pause"

    @pytest.mark.parametrize("amount", ["0", "-1", "nan", "inf", "much"])
    def test_an_amount_that_is_none_is_status_2(self, shell: Shell, amount: str) -> None:
        """A typing error would take the bound off."""
        result = shell.ok(*shell.start("--budget-usd", amount), exit_code=2)
        assert "--budget-usd" in result.stderr
        assert result.stderr.count("\n") == 1


class TestCosts:
    @pytest.fixture
    def paid(self, shell: Shell) -> Shell:
        """Three rows at a known price and three at an unknown one."""
        shell.ok(*shell.start("--run-id", "known", "--wait"))
        shell.ok(*shell.start("--run-id", "odd", "--wait", "--model", "no-such-model"))
        return shell

    def _costs(self, shell: Shell, *more: str) -> list[str]:
        return ["costs", "--db-path", str(shell.db), *more]

    def test_json_by_run(self, paid: Shell) -> None:
        """A script would take an unknown cost for none."""
        known, odd = paid.json(*self._costs(paid))
        assert known["run"] == "known"
        assert known["cost_usd"] == paid.json(*paid.on("status", "known"))["cost_usd"] > 0
        assert known["saved_usd"] == pytest.approx(known["cost_usd"])
        assert (known["batches"], known["items"], known["unpriced_tokens"]) == (1, 3, 0)
        assert (odd["run"], odd["cost_usd"], odd["known_usd"]) == ("odd", None, None)
        assert odd["unpriced_tokens"] == odd["input_tokens"] + odd["output_tokens"] > 0

    @pytest.mark.parametrize(
        ("by", "keys"),
        [
            ("model", ["gpt-4.1-mini", "no-such-model"]),
            ("provider", ["openai"]),
            ("asset", [None]),
        ],
    )
    def test_other_groups(self, paid: Shell, by: str, keys: list[str | None]) -> None:
        """Costs could be told by run only."""
        lines = paid.json(*self._costs(paid, "--by", by))
        assert [line[by] for line in lines] == keys
        assert sum(line["items"] for line in lines) == 6

    def test_by_day_and_since(self, paid: Shell) -> None:
        """A month's bill could not be made."""
        today = datetime.now(UTC).date()
        days = {line["day"] for line in paid.json(*self._costs(paid, "--by", "day"))}
        assert days <= {(today - timedelta(days=n)).isoformat() for n in (0, 1)}
        assert paid.json(*self._costs(paid, "--since", (today - timedelta(days=1)).isoformat()))
        tomorrow = (today + timedelta(days=2)).isoformat()
        assert paid.json(*self._costs(paid, "--since", tomorrow)) == []
        assert "since then" in paid.ok(*self._costs(paid, "--since", tomorrow)).stdout

    def test_the_table_has_a_total_and_never_a_made_up_zero(self, paid: Shell) -> None:
        """People would read the known part as the whole bill."""
        text = paid.ok(*self._costs(paid)).stdout
        known, odd = paid.json(*self._costs(paid))
        row = next(line for line in text.splitlines() if " odd " in line)
        unknown = f"unknown for {odd['unpriced_tokens']:,} tokens"
        assert unknown in row
        assert "$0.00 " not in row
        total = next(line for line in text.splitlines() if "Total" in line)
        assert f"${known['cost_usd']:.6f}".rstrip("0") in total
        assert f"+ {unknown}" in total
        assert "…" not in text

    def test_nothing_yet(self, shell: Shell) -> None:
        """An empty state would print an empty table, or crash."""
        assert shell.ok("costs").stdout == "Nothing was collected yet.\n"
        assert shell.json("costs") == []


def test_a_repeated_dry_run_leaves_a_state_as_it_was(
    shells: Callable[..., Shell], tmp_path: Path
) -> None:
    """An estimate beside a live run would change it."""
    shell = shells()
    shell.ok(*shell.start("--run-id", "r"))
    before = json.dumps(shell.json(*shell.on("status")))
    shell.ok(*_estimate(shell))
    shell.ok(*shell.start("--run-id", "r", "--dry-run"))
    assert json.dumps(shell.json(*shell.on("status"))) == before
    assert len(shell.json("list", "--db-path", str(shell.db))) == 1
