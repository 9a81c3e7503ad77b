"""``row_function``: the decorated function of a batch asset, for unit tests."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.declaration import function_of


def row_function(asset: dg.AssetsDefinition) -> Callable[..., Any]:
    """Return the function that ``@batch_asset`` decorated, as it was written.

    Called with its arguments, it returns the rows that a request would ask, without a run, a
    resource or a provider. If it takes a context, give it
    ``dagster.build_asset_context(partition_key=…)``.

    Raises:
        ConfigurationError: ``asset`` is no batch asset.
    """
    found = function_of(asset)
    if found is None:
        raise ConfigurationError(f"{asset!r} is no batch asset: call it as Dagster's are called")
    return found
