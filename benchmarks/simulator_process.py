"""A simulated provider in a process of its own, whose work no benchmark counts as the client's."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from typing import Any


@contextmanager
def simulator_process(**options: Any) -> Iterator[str]:
    """Start it, and end it at the end of the block; yields its URL.

    Args:
        options: Those of :class:`batchor_core.simulator.SimulatorOptions`.
    """
    os.environ["NO_PROXY"] = "127.0.0.1"
    context = multiprocessing.get_context("spawn")
    urls: SimpleQueue[str] = context.SimpleQueue()
    process = context.Process(target=_serve, args=(options, urls), daemon=True)
    process.start()
    try:
        yield urls.get()
    finally:
        process.terminate()
        process.join()


def _serve(options: dict[str, Any], urls: "SimpleQueue[str]") -> None:
    from batchor_core.simulator import SimulatorOptions, serve  # noqa: PLC0415 - not in the client

    serve(options=SimulatorOptions(**options), on_ready=urls.put)
