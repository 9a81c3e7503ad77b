"""Shapes that every Anthropic call shares: errors and pages."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.responses import JSONResponse

from batchor_core.simulator.calls import Refusal

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_KNOWN_TYPES = frozenset(_ERROR_TYPES.values()) | {"api_error"}
_DEFAULT_PAGE = 20
_MAX_PAGE = 1_000


class WireError(Refusal):
    """A call that is refused with an error in Anthropic's shape."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(error_type(status), message)

    def response(self) -> JSONResponse:
        """Return the HTTP answer."""
        return JSONResponse(self.body, self.status)


def error_type(status: int, told: str | None = None) -> str:
    """Return the type of an error: the one that a fault rule tells, if Anthropic has such."""
    return told if told in _KNOWN_TYPES else _ERROR_TYPES.get(status, "api_error")


def error_body(kind: str, message: str, *, error_code: str | None = None) -> dict[str, Any]:
    """Return the body of an error; ``error_code`` is what Anthropic says in ``error.details``."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if error_code is not None:
        error["details"] = {"error_code": error_code}
    return {"type": "error", "error": error, "request_id": f"req_{uuid.uuid4().hex[:24]}"}


class Identified(Protocol):
    """Something with an id."""

    id: str


T = TypeVar("T", bound=Identified)


def page_of(items: Sequence[T], query: Mapping[str, str]) -> tuple[list[T], bool]:
    """Return the part of ``items`` that a query asks for, and whether there is more that way.

    Raises:
        WireError: The limit is out of range, or a cursor is not among the items.
    """
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise WireError(400, "after_id, before_id: only one of them may be given")
    if before:
        end = _position(items, before, "before_id")
        start = max(0, end - limit)
        return list(items[start:end]), start > 0
    start = _position(items, after, "after_id") + 1 if after else 0
    return list(items[start : start + limit]), start + limit < len(items)


def list_body(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page as JSON."""
    return {
        "data": data,
        "has_more": has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _position(items: Sequence[T], wanted: str, name: str) -> int:
    for number, item in enumerate(items):
        if item.id == wanted:
            return number
    raise WireError(400, f"{name}: there is no batch {wanted!r}")


def _limit(given: str | None) -> int:
    if given is None:
        return _DEFAULT_PAGE
    if not given.isdigit() or not 1 <= int(given) <= _MAX_PAGE:
        raise WireError(400, f"limit: Input should be between 1 and {_MAX_PAGE}")
    return int(given)
