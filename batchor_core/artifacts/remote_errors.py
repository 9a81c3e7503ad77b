"""Telling the faults of object stores apart, whichever library raises them.

The libraries are optional, so their exceptions are known by what they carry and not by import.
"""

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any

_RETRY_STATUS = frozenset({408, 425, 429})
_BUSY = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
        getattr(errno, "EREMOTEIO", errno.EIO),  # s3fs: InternalError
    }
)
_CONNECTION_MODULES = ("aiohttp", "requests", "urllib3")
_CONNECTION_NAMES = frozenset(
    {
        # botocore
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ResponseStreamingError",
        # azure-core (and its own IncompleteReadError)
        "ServiceRequestError",
        "ServiceResponseError",
        # gcsfs, google-auth
        "ChecksumError",
        "TransportError",
    }
)
_LONGEST = 300
_QUERY = re.compile(r"(https?://[^\s?\"']*)\?[^\s\"']*")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed later, without anybody mending anything."""
    return any(_is_transient(link) for link in _chain(error))


def is_missing(error: BaseException) -> bool:
    """Whether the file is not there (older gcsfs leaves the answer's 404 as it is)."""
    return any(
        isinstance(link, FileNotFoundError) or _status_of(link) == 404 for link in _chain(error)
    )


def one_line(error: BaseException, options: Mapping[str, Any]) -> str:
    """Describe an error in one short line that holds none of the options' values."""
    text = " ".join(str(error).split()) or type(error).__name__
    for value in sorted(_texts(options), key=len, reverse=True):
        text = text.replace(value, "***")
    text = _QUERY.sub(r"\1?***", text)  # a signature would stand there
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _is_transient(error: BaseException) -> bool:
    status = _status_of(error)
    if status is not None:
        return status >= 500 or status in _RETRY_STATUS
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, OSError) and error.errno in _BUSY:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _CONNECTION_NAMES:
        return True
    return type(error).__module__.split(".")[0] in _CONNECTION_MODULES


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an answer: botocore, azure-core, aiohttp and gcsfs in turn."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    for name in ("status_code", "status", "code"):
        value = str(getattr(error, name, ""))
        if value.isdigit() and 100 <= int(value) < 600:
            return int(value)
    return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in options that may be secret; addresses are no secrets, nor are flags."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str) and len(value) >= 8 and not value.startswith("http"):
        yield value
