"""The warning of places that other machines cannot reach."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest
from dagster import DagsterInstance

from batchor_core import BatchRunner
from batchor_dagster import BatchorResource
from batchor_dagster.step.local_places import out_of_reach
from tests.dagster.world import World, answers_asset

K8S = {"run_launcher": {"module": "dagster_k8s", "class": "K8sRunLauncher"}}


@contextmanager
def _on_kubernetes(world: World) -> Iterator[World]:
    """The world with another instance, whose launcher's package is not even installed here."""
    overrides = {"telemetry": {"enabled": False}, **K8S}
    with DagsterInstance.local_temp(overrides=overrides) as instance:
        world.instance = instance
        yield world


def _warnings(world: World, result: dg.ExecuteInProcessResult) -> list[str]:
    entries = world.instance.all_logs(result.run_id)
    return [entry.user_message for entry in entries if entry.level == logging.WARNING]


def _celery(name: str | None = None) -> dg.ExecutorDefinition:
    """An executor as ``dagster_celery`` defines it, without having it."""
    module = ModuleType("dagster_celery.executor")
    source = "def celery_executor(init_context):\n    raise NotImplementedError\n"
    exec(compile(source, "executor.py", "exec"), module.__dict__)
    executor = dg.executor(name="celery")(module.celery_executor)
    return executor.configured({}, name=name) if name else executor


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[BatchRunner]:
    """State and files on this machine."""
    with BatchRunner(tmp_path / "state.sqlite3", tmp_path / "artifacts") as opened:
        yield opened


def test_request_warns_of_places_that_pods_do_not_share(world: World) -> None:
    """Answers would be paid for by a pod whose files are gone, and never come to the user."""
    with _on_kubernetes(world):
        result = world.request(answers_asset())
        (warning,) = _warnings(world, result)
        assert "K8sRunLauncher" in warning
        assert "SQLite" in warning
        assert repr(str(world.folder / "artifacts")) in warning


def test_shared_files_are_not_warned_of(world: World) -> None:
    """Users whose files are safe would look for what is wrong with them."""
    with _on_kubernetes(world):
        state = str(world.folder / "state.sqlite3")
        shared = BatchorResource(state=state, artifacts="memory://batchor/warned")
        world.resources["batchor"] = shared
        (warning,) = _warnings(world, world.request(answers_asset()))
        assert "SQLite" in warning
        assert "folder" not in warning


def test_one_machine_needs_no_warning(world: World) -> None:
    """Everybody who tries the package out would be told to set up a database."""
    assert _warnings(world, world.request(answers_asset())) == []


@pytest.mark.parametrize(
    ("executor", "expected"),
    [
        (dg.in_process_executor, None),
        (dg.multiprocess_executor, None),
        (dg.multi_or_in_process_executor, None),
        (_celery(), "'celery'"),
        (_celery("two_workers"), "'two_workers'"),
    ],
    ids=["in_process", "multiprocess", "default", "celery", "celery by another name"],
)
def test_executors(
    runner: BatchRunner, executor: dg.ExecutorDefinition, expected: str | None
) -> None:
    """Workers of a queue on other machines would go unnoticed, or local ones be warned of."""
    with DagsterInstance.ephemeral() as instance:
        warning = out_of_reach(runner, instance, executor)
    assert expected in warning if expected and warning else warning is expected, warning
