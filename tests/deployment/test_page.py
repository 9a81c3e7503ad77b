"""What docs/deployment.md says: its settings are loaded, its versions are those that are tried."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.core.postgres import postgres_databases
from tests.deployment.services import missing_for_celery

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def postgres_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database, named as the page says."""
    pytest.importorskip("dagster_postgres")
    with postgres_databases() as new_database:
        url = new_database().replace("postgresql://", "postgresql+psycopg2://")
        monkeypatch.setenv("DAGSTER_POSTGRES_URL", url)
        yield url


def test_dagster_yaml_is_what_dagster_takes(postgres_url: str, tmp_path: Path) -> None:
    """A deployment that was copied from the page would not start, or not on PostgreSQL."""
    (tmp_path / "dagster.yaml").write_text("\n".join(_blocks("yaml")))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.get_runs() == []
        assert instance.run_storage.postgres_url == postgres_url  # type: ignore[attr-defined]
        assert instance.run_retries_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 10


def test_resources_are_what_the_package_takes() -> None:
    """A code location that was copied from the page would not load."""
    resources, *_ = _blocks("python")
    _run(resources, {})


@pytest.mark.skipif(missing_for_celery() is not None, reason=str(missing_for_celery()))
def test_executor_is_what_dagster_celery_takes() -> None:
    """A code location that was copied from the page would not load."""
    _, executor = _blocks("python")
    _run(executor, {"CELERY_BROKER": "redis://127.0.0.1:6379/0"})


def test_oldest_version_is_the_one_that_pip_allows() -> None:
    """The page would promise a Dagster that nobody tried, or leave out one that pip installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = [r for r in project["dependencies"] if r.startswith("dagster>=")]
    oldest = requirement.removeprefix("dagster>=")
    table = PAGE.split("## Versions that the hold was tried on")[1]
    versions = re.findall(r"^\| (\d+\.\d+\.\d+)", table, flags=re.MULTILINE)
    assert versions[0] == oldest
    assert f"| {oldest} (oldest supported) |" in table
    assert versions == sorted(versions, key=lambda text: [int(n) for n in text.split(".")])


def _run(code: str, env: dict[str, str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
