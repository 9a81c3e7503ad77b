"""The one place where failures of an SDK and of the transport become ``ProviderError``."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import httpx2

from batchor_core.errors import ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.scrubbing import Scrubber
from batchor_core.providers.wire import UnusableAnswerError, one_line

_MESSAGE_CHARS = 300


class Classify(Protocol):
    """A provider's table of HTTP errors."""

    def __call__(
        self, status: int, body: object, headers: Mapping[str, str], *, creating: bool = False
    ) -> Fault:
        """Classify an HTTP error answer."""
        ...


class ErrorMapping:
    """Maps what a call raises; no message that comes of it shows the account's key.

    Args:
        scrubber: Knows the key: some hosts and proxies echo a request's headers.
        classify: The provider's table of HTTP errors: called with status, decoded body, headers
            in lower case, and ``creating``.
        status_error: What the SDK raises for an HTTP error; it has the ``response``.
        sdk_error: Base of everything else that the SDK raises.
    """

    def __init__(
        self,
        scrubber: Scrubber,
        classify: Classify,
        *,
        status_error: type[Exception],
        sdk_error: type[Exception],
    ) -> None:
        self._scrubber = scrubber
        self._classify = classify
        self._status_error = status_error
        self._transport_errors = (sdk_error, httpx2.HTTPError, UnusableAnswerError, ValueError)

    @contextmanager
    def call(self, *, creating: bool = False, harmless: Collection[int] = ()) -> Iterator[None]:
        """Surround one call.

        Args:
            creating: Whether it creates a batch, so that failing may have taken effect.
            harmless: Statuses that are no error for this call.

        Raises:
            ProviderError: For whatever the SDK or the transport raised.
        """
        try:
            yield
        except self._status_error as exc:
            response: httpx2.Response = exc.response  # type: ignore[attr-defined]  # SDKs have it
            if response.status_code in harmless:
                return
            self._raise(self._status_fault(response, creating=creating), exc)
        except self._transport_errors as exc:
            self._raise(self._transport_fault(exc, creating=creating), exc)

    def _raise(self, fault: Fault, exc: Exception) -> None:
        error = ProviderError(f"{fault.code}: {fault.message}", fault)
        raise error from (exc if self._scrubber.is_clean(exc) else None)

    def _status_fault(self, response: httpx2.Response, *, creating: bool) -> Fault:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return self._classify(
            response.status_code, self._body(response), headers, creating=creating
        )

    def _body(self, response: httpx2.Response) -> Any:
        try:
            content = self._scrubber.data(response.content)
        except (httpx2.StreamError, httpx2.HTTPError):
            return None
        decoded = decode_json(content)
        return content.decode("utf-8", "replace") if decoded is None else decoded

    def _transport_fault(self, exc: Exception, *, creating: bool) -> Fault:
        cause = f" ({type(exc.__cause__).__name__}: {exc.__cause__})" if exc.__cause__ else ""
        message = one_line(self._scrubber.text(f"{exc}{cause}"))[:_MESSAGE_CHARS]
        return Fault(
            kind=FaultKind.UNKNOWN_OUTCOME if creating else FaultKind.TRANSIENT,
            owner=FaultOwner.NETWORK,
            code=type(exc).__name__,
            message=message,
        )
