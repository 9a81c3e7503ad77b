"""The one place where failures of OpenAI's SDK and of the transport become ``ProviderError``."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from batchor_core.errors import ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.openai.faults import call_fault, one_line
from batchor_core.providers.openai.records import UnusableAnswerError
from batchor_core.providers.scrubbing import Scrubber

_MESSAGE_CHARS = 300


class ErrorMapping:
    """Maps what a call raises; no message that comes of it shows the account's key.

    Args:
        scrubber: Knows the key: some hosts and proxies echo a request's headers.
    """

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    @contextmanager
    def call(self, *, creating: bool = False, harmless: Collection[int] = ()) -> Iterator[None]:
        """Surround one call.

        Args:
            creating: Whether it creates a batch, so that failing may have taken effect.
            harmless: Statuses that are no error for this call.

        Raises:
            ProviderError: For whatever the SDK or the transport raised.
        """
        import openai  # noqa: PLC0415 - loaded already: a client exists

        try:
            yield
        except openai.APIStatusError as exc:
            if exc.status_code in harmless:
                return
            self._raise(self._status_fault(exc.response, creating=creating), exc)
        except (openai.APIError, httpx2.HTTPError, UnusableAnswerError, ValueError) as exc:
            self._raise(self._transport_fault(exc, creating=creating), exc)

    def _raise(self, fault: Fault, exc: Exception) -> None:
        error = ProviderError(f"{fault.code}: {fault.message}", fault)
        raise error from (exc if self._scrubber.is_clean(exc) else None)

    def _status_fault(self, response: httpx2.Response, *, creating: bool) -> Fault:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return call_fault(response.status_code, self._body(response), headers, creating=creating)

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
