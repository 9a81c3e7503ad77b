"""Accounts in forked children: connections do not survive a fork."""

import os
from collections.abc import Callable
from typing import Any

from batchor_core.providers.protocol import BatchProvider


class ForkedApart:
    """The adapter of an account, connected anew in each forked child.

    A child that went on over the sockets of its parent would read the answers to its parent's
    calls, and the parent the child's: the state of another batch, the id of one that is not its
    own. All of the adapter's attributes are here, so that it can stand for a ``BatchProvider``.

    Args:
        connect: Makes the adapter.
    """

    def __init__(self, connect: Callable[[], BatchProvider]) -> None:
        self._connect = connect
        self._by_pid = {os.getpid(): connect()}

    def __getattr__(self, name: str) -> Any:
        adapter = self._by_pid.get(os.getpid())
        if adapter is None:  # those of the parents are kept: they are not the child's to close
            adapter = self._by_pid.setdefault(os.getpid(), self._connect())
        return getattr(adapter, name)

    def close(self) -> None:
        """Close this process's connections. Idempotent."""
        adapter = self._by_pid.get(os.getpid())
        if adapter is not None:
            adapter.close()
