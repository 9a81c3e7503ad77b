"""The function behind a batch asset, to be tested like any other."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.declaration import function_of


def row_function(asset: dg.AssetsDefinition) -> Callable[..., Any]:
    """Return the function that ``@batch_asset`` decorated, as it was written.

    Called with the arguments that it names, it returns the rows that would be asked: without a
    run, a resource or a provider. Where it takes a context, give it
    ``dagster.build_asset_context(partition_key=…)``.

    Raises:
        ConfigurationError: It is no batch asset.
    """
    found = function_of(asset)
    if found is None:
        raise ConfigurationError(f"{asset!r} is no batch asset: call it as Dagster's are called")
    return found
