"""`doctor`: what it finds, and what it says to do about it."""

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from batchor_core import ArtifactStore, BatchRunner, OpenAIProviderConfig
from batchor_core.cli import doctor as command
from batchor_core.doctor import Doctor, Finding, Health
from batchor_core.errors import ArtifactError, StoreError
from batchor_core.model.records import ScopeLimits
from batchor_core.providers.config import TokenPrice
from batchor_core.store.protocol import StoreHealth
from tests.cli.commands import Shell

CHECKS = [
    "store",
    "migrations",
    "artifacts",
    "credentials",
    "clock",
    "limits",
    "vocabulary",
    "prices",
]


class FixedClock:
    """A machine whose clock is off."""

    def __init__(self, off_s: float = 0.0) -> None:
        self._off = timedelta(seconds=off_s)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._off

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Do not."""


def by_check(findings: Any) -> dict[str, Finding]:
    """Findings of one model, by the check."""
    return {finding.check: finding for finding in findings}


@pytest.fixture
def examine(shell: Shell) -> Callable[..., dict[str, Finding]]:
    """Examines the shell's place, with one model."""

    def call(
        *, clock: Any = None, config: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Finding]:
        doctor = Doctor(
            options.pop("open_runner", lambda: BatchRunner(shell.db)),
            clock or FixedClock(),
            **{"has_vocabulary": lambda model: True, **options},
        )
        return by_check(
            doctor.examine([OpenAIProviderConfig(**{"model": "gpt-4.1-mini", **(config or {})})])
        )

    return call


Examine = Callable[..., dict[str, Finding]]


def test_all_is_well(examine: Examine, shell: Shell) -> None:
    """A healthy place would be called ill."""
    found = examine()
    assert list(found) == CHECKS
    assert {finding.health for finding in found.values()} == {Health.OK}
    assert all(finding.remedy is None for finding in found.values())
    assert not list((shell.folder / "artifacts").rglob("probe.txt"))
    assert shell.at_provider("batches") == []


def test_every_fault_has_a_remedy(examine: Examine) -> None:
    """Somebody would read what is wrong, and not what to do."""
    found = examine(
        clock=FixedClock(300),
        config={"model": "model-of-nobody"},
        has_vocabulary=lambda model: False,
    )
    warned = {name for name, each in found.items() if each.health is Health.WARNING}
    assert warned == {"clock", "vocabulary", "prices"}
    assert all(found[name].remedy for name in warned)
    assert _seconds_off(found, "ahead of") == pytest.approx(300, abs=60)
    assert found["vocabulary"].remedy is not None
    assert "TIKTOKEN_CACHE_DIR" in found["vocabulary"].remedy
    stated = {"model": "model-of-nobody", "price": TokenPrice(input_usd=1, output_usd=2)}
    assert examine(config=stated)["prices"].health is Health.OK


def _seconds_off(found: dict[str, Finding], which: str) -> int:
    seconds, unit, rest = found["clock"].detail.split(" ", 2)
    assert (unit, rest) == ("s", f"{which} the provider's")
    return int(seconds)


def test_a_slow_clock(examine: Examine) -> None:
    """Only a clock that is ahead would be noticed."""
    found = examine(clock=FixedClock(-3600))
    assert _seconds_off(found, "behind") == pytest.approx(3600, abs=60)


def test_missing_and_refused_credentials(
    examine: Examine, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run would be the first to find out that the key is wrong."""
    shell.sim.faults(kind="http_error", status=401)
    refused = examine()
    assert refused["credentials"].health is Health.ERROR
    assert "sk-test" not in refused["credentials"].detail
    assert "clock" not in refused
    monkeypatch.delenv("OPENAI_API_KEY")
    missing = examine()
    assert "OPENAI_API_KEY" in missing["credentials"].detail
    assert missing["prices"].health is Health.OK


def test_a_provider_that_cannot_be_reached(examine: Examine) -> None:
    """A proxy in between would be taken for a wrong key."""
    found = examine(config={"base_url": "http://127.0.0.1:9/v1"})
    assert found["connection"].health is Health.ERROR
    assert "credentials" not in found


def test_no_date_header(examine: Examine) -> None:
    """A proxy that drops the header would make unacknowledged batches wait for nothing."""
    from batchor_core.providers.openai.adapter import OpenAIProvider
    from batchor_core.providers.protocol import Sighting, Wanted

    class Timeless(OpenAIProvider):
        def find(self, wanted: Wanted) -> Sighting:
            return Sighting(matches=[], server_time=None)

    found = examine(connect=Timeless)
    assert found["clock"].health is Health.WARNING
    assert "Date header" in found["clock"].detail


def test_remembered_limits_are_shown(examine: Examine, shell: Shell) -> None:
    """Nobody could tell why a run sends so little at once."""
    assert examine()["limits"].detail == "none met so far"
    with BatchRunner(shell.db) as runner:
        scope = runner.open(_job()).record.scope
        runner.store.remember_limits(scope, ScopeLimits(max_tokens=2_000_000), None)
    assert examine()["limits"].detail == "no more than 2,000,000 tokens at once"


def test_a_state_that_cannot_be_written(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything would look well until the first run could not be recorded."""
    from batchor_core.store.sql import SQLiteStorage

    def refuse(self: object) -> StoreHealth:
        raise StoreError("it is read-only")

    monkeypatch.setattr(SQLiteStorage, "check", refuse)
    found = examine()
    assert (found["store"].health, found["store"].detail) == (Health.ERROR, "it is read-only")
    assert "migrations" not in found


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_file(examine: Examine, shell: Shell) -> None:
    """SQLite tells only at the first write."""
    BatchRunner(shell.db).close()
    shell.db.chmod(stat.S_IRUSR)
    assert examine()["store"].health is Health.ERROR


def test_another_versions_schema(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions that share a store would trip over each other's tables."""
    from batchor_core.store.sql import SQLiteStorage

    health = StoreHealth(location="store", schema="0002", newest="0001")
    monkeypatch.setattr(SQLiteStorage, "check", lambda self: health)
    assert examine()["migrations"].health is Health.ERROR


@pytest.mark.parametrize("call", ["writer", "local", "delete"])
def test_a_place_for_files_that_lacks_a_right(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A bucket that can be written and not read would fail when everything is paid for."""

    def refuse(self: ArtifactStore, *_: object) -> None:
        raise ArtifactError("access denied")

    monkeypatch.setattr(ArtifactStore, call, refuse)
    found = examine()["artifacts"]
    assert (found.health, found.detail) == (Health.ERROR, "access denied")


def test_a_place_where_nothing_can_be_removed(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning would report success for ever, and the bucket grow."""
    monkeypatch.setattr(ArtifactStore, "delete", lambda self, path: None)
    found = examine()["artifacts"]
    assert found.health is Health.ERROR
    assert "still there" in found.detail


def test_a_place_that_cannot_be_opened(examine: Examine) -> None:
    """One fault would hide all the others."""

    def fails() -> BatchRunner:
        raise StoreError("no such folder")

    found = examine(open_runner=fails)
    assert found["store"].health is Health.ERROR
    assert found["credentials"].health is Health.OK
    assert "limits" not in found


class TestCommand:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("batchor_core.doctor.load_vocabulary", lambda model: object())

    def test_keys_of_the_environment_are_looked_at(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """People would have to know options before they could ask what is wrong."""
        for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("GOOGLE_GENAI_USE_VERTEXAI", raising=False)
        text = shell.ok("doctor").stdout
        assert "ok      credentials (openai gpt-4.1-mini): " in text
        found = shell.json("doctor")
        assert [each["check"] for each in found] == CHECKS
        assert {each["health"] for each in found} == {"ok"}

    def test_a_fault_is_status_1_with_its_remedy(self, shell: Shell) -> None:
        """A deployment script could not tell that nothing will work."""
        args = ("doctor", "--provider", "openai", "--base-url", "http://127.0.0.1:9/v1")
        text = shell.ok(*args, exit_code=1).stdout
        assert "ERROR   connection (openai gpt-4.1-mini): " in text
        assert "        -> check the network" in text

    def test_without_keys_the_models_of_the_runs_are_looked_at(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A key that has gone missing would not be missed."""
        shell.ok(*shell.start("--run-id", "r", "--wait"))
        for names in command._VARIABLES.values():
            for name in names:
                monkeypatch.delenv(name, raising=False)
        text = shell.ok("doctor", "--db-path", str(shell.db), exit_code=1).stdout
        assert "ERROR   credentials (openai gpt-4.1-mini): no OpenAI key" in text
        nothing = shell.ok("doctor").stdout
        assert "No account was looked at: give --provider, or set a key." in nothing

    def test_a_missing_state_is_a_finding(self, shell: Shell) -> None:
        """A wrong path would end the examination."""
        path = str(Path("nowhere") / "state.sqlite3")
        text = shell.ok("doctor", "--db-path", path, exit_code=1).stdout
        assert "ERROR   store: no batch runs" in text
        assert "ok      credentials" in text

    @pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
    def test_each_provider_has_a_usual_model(self, provider: str) -> None:
        """An account could only be looked at by who knows a model's name."""
        assert command._config(provider, None, None).provider == provider

    def test_the_example_works(self, shell: Shell) -> None:
        """People would paste the example from the help, and it would fail."""
        (line,) = command.doctor.example.splitlines()  # type: ignore[attr-defined]
        shell.ok(*line.split()[1:])


def _job() -> Any:
    from batchor_core import BatchItem, BatchJob

    return BatchJob(
        items=[BatchItem(item_id="a", payload="x")],
        provider_config=OpenAIProviderConfig(model="gpt-4.1-mini"),
    )
