"""Warn if Dagster may run on other machines, which do not see files of this one."""

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
"""Packages whose run launchers or executors start processes in containers or on other machines."""


def out_of_reach(
    runner: BatchRunner, instance: DagsterInstance, executor: ExecutorDefinition
) -> str | None:
    """Return a warning if the deployment has other machines and state or files are local.

    Args:
        runner: Has the store and the artifacts.
        instance: Has the run launcher.
        executor: The executor of the Dagster run's job.
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
