"""Child processes of tests, from one server that has imported what they need."""

import multiprocessing
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

FORKS = multiprocessing.get_context("forkserver")
_ENDS_ARE_READ = threading.Lock()
"""Each start and each join reads the ends of all children, and of two threads that read the same
end at once, one takes the other's code for lost (255)."""


def start(process: BaseProcess) -> BaseProcess:
    """Start a child; other threads may start and await theirs at the same time."""
    with _ENDS_ARE_READ:
        process.start()
    return process


def code_of(process: BaseProcess, timeout_s: float) -> int | None:
    """Wait for a child's end and return its exit code; None if it goes on."""
    wait([process.sentinel], timeout=timeout_s)
    with _ENDS_ARE_READ:
        return process.exitcode


def kill(process: BaseProcess) -> None:
    """Kill a child, if it still lives, and wait for its end."""
    if code_of(process, 0) is None:
        process.kill()
        code_of(process, 60)
