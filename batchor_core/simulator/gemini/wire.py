"""Shapes that every Gemini call shares: errors, pages, times, and names in either spelling."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from starlette.responses import JSONResponse

from batchor_core.simulator.answers import NOTICE
from batchor_core.simulator.calls import Refusal
from batchor_core.simulator.clock import SimulatorClock

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_RPC_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}


class GeminiError(Refusal):
    """A call that is refused with an error in Google's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        name: str = "",
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        info = [_error_info(reason)] if reason else []
        self.body = error_body(status, message, name=name, details=[*info, *details])

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        return JSONResponse(self.body, self.status)


def error_body(
    status: int, message: str, *, name: str = "", details: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The body of a refused call; its code is the HTTP status."""
    error: dict[str, Any] = {
        "code": status,
        "message": message,
        "status": name or status_name(status),
    }
    if details:
        error["details"] = list(details)
    return {"error": error}


def rpc_status(name_or_number: object, message: str) -> dict[str, Any]:
    """A ``google.rpc.Status``, whose code is an RPC code and whose details are objects."""
    text = str(name_or_number)
    number = int(text) if text.isdigit() else _RPC_CODES.get(text, 3)
    return {"code": number, "message": message, "details": [_error_info("SIMULATED")]}


def status_name(status: int) -> str:
    """The name that Google gives to an HTTP status."""
    return _STATUSES.get(status, "INTERNAL" if status >= 500 else "FAILED_PRECONDITION")


def line_error(status: int, message: str) -> dict[str, Any]:
    """The error of one result line, for the HTTP status that a rule names."""
    return rpc_status(status_name(status), message)


def rfc3339(at: float, clock: SimulatorClock) -> str:
    """An instant as Google writes it, with nanoseconds."""
    moment = datetime.fromtimestamp(clock.unix(at), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(at % 1 * 1e9):09d}Z"


def field(record: object, *path: str) -> Any:
    """A value by its camelCase path; each step may be spelt in snake_case instead."""
    for name in path:
        if not isinstance(record, Mapping):
            return None
        record = record[name] if name in record else record.get(_snake(name))
    return record


def camel(name: str) -> str:
    """A field's name in camelCase."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def page_bounds(query: Mapping[str, str], ids: Sequence[str], highest: int) -> tuple[int, int]:
    """Where a page begins and ends among ``ids``, as ``pageSize`` and ``pageToken`` ask.

    Raises:
        GeminiError: The token is none of ours, or the size no number.
    """
    size, token = query.get("pageSize", ""), query.get("pageToken", "")
    if size and not size.isdigit():
        raise GeminiError(400, f"Invalid value at 'page_size': {size!r}")
    if token and token not in ids:
        raise GeminiError(400, f"Invalid page token ({NOTICE}).")
    start = ids.index(token) + 1 if token else 0
    return start, start + min(int(size or 0) or highest, highest)


def _error_info(reason: str) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": {"service": "generativelanguage.googleapis.com"},
    }


@lru_cache(maxsize=256)
def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", name)
