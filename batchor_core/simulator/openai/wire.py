"""Shapes that every OpenAI call shares: errors and pages."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.responses import JSONResponse

from batchor_core.simulator.calls import Refusal

ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/embeddings")


class WireError(Refusal):
    """A call that is refused with an error in OpenAI's shape."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, code=code, param=param)

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        return JSONResponse(self.body, self.status)


def error_object(
    message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The inner error object of a refused request."""
    return {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def error_body(
    message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The body of a refused call."""
    return {"error": error_object(message, code=code, param=param)}


class Identified(Protocol):
    """Something with an id."""

    id: str


T = TypeVar("T", bound=Identified)


def page_of(
    items: Sequence[T], query: Mapping[str, str], *, default: int, highest: int
) -> tuple[list[T], bool]:
    """The part of `items` that `after` and `limit` ask for, and whether there is more.

    Raises:
        WireError: The limit is out of range, or `after` is not among the items.
    """
    limit = _limit(query.get("limit"), default, highest)
    start = 0
    after = query.get("after")
    if after:
        ids = [item.id for item in items]
        if after not in ids:
            raise WireError(400, f"Invalid value for 'after': {after}", param="after")
        start = ids.index(after) + 1
    return list(items[start : start + limit]), start + limit < len(items)


def list_body(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page as JSON."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _limit(given: str | None, default: int, highest: int) -> int:
    if given is None:
        return default
    if not given.isdigit() or not 1 <= int(given) <= highest:
        raise WireError(
            400, f"Invalid 'limit': expected an integer between 1 and {highest}.", param="limit"
        )
    return int(given)
