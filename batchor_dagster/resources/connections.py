"""Open a runner on Dagster's resources: the store and the accounts of providers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from dagster import DagsterRun, ResourceDefinition, build_resources

from batchor_core import BatchRunner, ConfigurationError
from batchor_core.integration import BatchProvider, ProviderConfig
from batchor_core.integration import connect as connect_to
from batchor_dagster.resources import BatchorResource, ProviderBatchResource

BATCHOR_RESOURCE = "batchor"
"""Resource key of the ``BatchorResource``."""


@contextmanager
def open_runner(
    resources: Any,
    location: str | None,
    others: Mapping[str, ResourceDefinition] | None = None,
) -> Iterator[BatchRunner]:
    """Open a runner on a context's resources; close it after the block.

    Args:
        resources: ``context.resources`` of a step, an op or a sensor.
        location: Name of the code location.
        others: Further resource definitions of the code location. An account that ``resources``
            lack is built from them when it is needed.
    """
    with ExitStack() as stack:

        def connect(config: ProviderConfig) -> BatchProvider:
            key = config.credentials or ""
            found = resources
            if not hasattr(resources, key):
                found = stack.enter_context(build_resources(_with_parts(key, others or {})))
            return connect_to(provider_resource(found, key).with_key(config))

        batchor = batchor_resource(resources)
        yield stack.enter_context(batchor.runner(location, connect))


def _with_parts(
    key: str, definitions: Mapping[str, ResourceDefinition]
) -> dict[str, ResourceDefinition]:
    """Return a resource's definition with those that it requires; empty if there is none."""
    needed = [key] if key in definitions else []
    for each in needed:
        parts = sorted(definitions[each].required_resource_keys)
        needed += [part for part in parts if part in definitions and part not in needed]
    return {each: definitions[each] for each in needed}


def batchor_resource(resources: Any) -> BatchorResource:
    """Return the ``BatchorResource``.

    Raises:
        ConfigurationError: The resource ``batchor`` is something else.
    """
    found = getattr(resources, BATCHOR_RESOURCE)
    if not isinstance(found, BatchorResource):
        raise ConfigurationError(
            f"resource {BATCHOR_RESOURCE!r} is a {type(found).__name__}: give a BatchorResource"
        )
    return found


def provider_resource(resources: Any, key: str) -> ProviderBatchResource:
    """Return a provider's resource.

    Raises:
        ConfigurationError: There is none under this key.
    """
    found = getattr(resources, key, None)
    if not isinstance(found, ProviderBatchResource):
        raise ConfigurationError(
            f"resource {key!r} is {type(found).__name__}: give an OpenAIBatchResource, "
            "AnthropicBatchResource or GeminiBatchResource under this key"
        )
    return found


def location_of(run: DagsterRun) -> str | None:
    """Return the name of the code location that a Dagster run belongs to, where it has one."""
    origin = run.remote_job_origin
    return origin.location_name if origin is not None else None
