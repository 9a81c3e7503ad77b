"""Whether Dagster runs on other machines, which a file on this one does not reach."""

from dagster import DagsterInstance, ExecutorDefinition

from batchor_core import BatchRunner, SQLiteStorage

_PACKAGES = frozenset(
    {
        "dagster_aws",
        "dagster_celery",
        "dagster_celery_docker",
        "dagster_celery_k8s",
        "dagster_cloud",
        "dagster_contrib_gcp",
        "dagster_dask",
        "dagster_docker",
        "dagster_k8s",
    }
)
"""Whose run launchers and executors start processes in other containers or on other machines."""


def out_of_reach(
    runner: BatchRunner, instance: DagsterInstance, executor: ExecutorDefinition
) -> str | None:
    """Return a warning if state or files lie where other machines of the deployment look in vain.

    Args:
        runner: The store and the artifacts that are used.
        instance: Whose run launcher counts.
        executor: Of the Dagster run's job.
    """
    places = _local_places(runner)
    starters = [name for name in (_launcher(instance), _executor(executor)) if name]
    if not places or not starters:
        return None
    return (
        f"{' and '.join(starters)} may run steps on other machines, but {' and '.join(places)}: "
        "unless all of them mount the same volume there, this partition is never materialized. "
        "Give BatchorResource a PostgreSQL URL and an object store"
    )


def _local_places(runner: BatchRunner) -> list[str]:
    places = []
    if isinstance(runner.store, SQLiteStorage):
        places.append("the state is a SQLite file")
    if runner.artifacts.is_local:
        places.append(f"the artifacts lie in the folder {runner.artifacts.root!r}")
    return places


def _launcher(instance: DagsterInstance) -> str | None:
    # As it is configured: the launcher's own package is often missing where a step runs.
    data = instance.get_ref().run_launcher_data if instance.is_persistent else None
    return data.class_name if data and _is_listed(data.module_name) else None


def _executor(executor: ExecutorDefinition) -> str | None:
    # Not by its name, which `configured(…, name=…)` changes.
    create = executor.executor_creation_fn
    return f"{executor.name!r}" if create and _is_listed(create.__module__) else None


def _is_listed(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES
