"""Load listeners by import path: a resource's configuration cannot hold objects."""

import importlib
from functools import cache
from typing import Any

from batchor_core import ConfigurationError, EventListener


@cache  # every step and tick opens a runner; a listener makes its metrics once per process
def load_listener(path: str) -> EventListener:
    """Return the listener behind an import path, the same one each time in a process.

    Args:
        path: ``package.module:name`` of a class or function that is called without arguments.

    Raises:
        ConfigurationError: The path cannot be imported, or makes an object without ``on_event``.
    """
    module, _, name = path.partition(":")
    try:
        make: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"listener {path!r} cannot be imported ({exc}): give package.module:name"
        ) from exc
    listener = make()
    if not callable(getattr(listener, "on_event", None)):
        raise ConfigurationError(
            f"listener {path!r} makes a {type(listener).__name__}, which has no on_event"
        )
    found: EventListener = listener
    return found
