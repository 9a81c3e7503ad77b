"""Calls through Google's SDK, with the answers as they came over the wire.

The SDK's typed methods lose what we need (``error``, ``batchStats`` and ``inputConfig`` of a
batch), break on what is legal (``details`` of an error are objects) and rewrite request bodies on
their way out (facts on providers, 0.2-0.5). So batches are asked for through the client that
these methods use themselves, which keeps to the SDK's addresses, versions, headers and
credentials, and hands out raw JSON. It is private, and used in this module alone. The other way,
a response hook that looks over the shoulder of the typed methods, would still send converted
bodies and still fail in their parsers.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from batchor_core.providers.error_mapping import ErrorMapping
from batchor_core.providers.gemini.faults import call_fault
from batchor_core.providers.http_dates import server_time
from batchor_core.providers.scrubbing import Scrubber
from batchor_core.providers.wire import UnusableAnswerError, object_of

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.genai import Client

REQUESTS_MEDIA_TYPE = "application/jsonl"
_BLANKS = b" \t\r\n\xef\xbb\xbf"
_START_BYTES = 1_000


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer: its JSON object, and the provider's clock when it was given."""

    record: dict[str, Any]
    server_time: datetime | None


class SdkClient:
    """One account's SDK client; it retries nothing.

    Args:
        options: Further arguments of ``genai.Client``: key, or credentials, project and location.
        base_url: Of the API; None for the SDK's own choice.
        api_version: Of the API; None for the SDK's own choice.
        timeout_s: Time-out of one call; the SDK has none of its own.
        scrubber: Takes the key out of answers that echo it.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        base_url: str | None,
        api_version: str | None,
        timeout_s: float,
        scrubber: Scrubber,
    ) -> None:
        from google import genai  # noqa: PLC0415 - a second that other runs need not pay
        from google.genai.types import HttpOptions  # noqa: PLC0415 - as late as the SDK itself

        self._scrubber = scrubber
        self._http = _HttpClient()
        self._client: Client = genai.Client(
            **options,
            http_options=HttpOptions(
                base_url=base_url,
                api_version=api_version,
                timeout=_milliseconds(timeout_s),
                httpx_client=self._http,
            ),
        )

    def error_mapping(self) -> ErrorMapping:
        """Return what maps the faults of calls."""
        from google.genai import errors  # noqa: PLC0415 - loaded already: a client exists

        return ErrorMapping(
            self._scrubber, call_fault, status_error=errors.APIError, sdk_error=errors.APIError
        )

    @property
    def base_url(self) -> str:
        """Where requests go."""
        return str(self._client._api_client._http_options.base_url)  # noqa: SLF001 - see above

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Reply:
        """Make one HTTP request and return the JSON object that it is answered with.

        Raises:
            errors.APIError: The status is not 200.
            UnusableAnswerError: The answer is no JSON object.
        """
        from google.genai.types import HttpOptions  # noqa: PLC0415 - loaded already

        options = HttpOptions(timeout=_milliseconds(timeout_s)) if timeout_s else None
        answer = self._client._api_client.request(  # noqa: SLF001 - see above
            method, path, body or {}, options
        )
        headers = {name.lower(): value for name, value in (answer.headers or {}).items()}
        content = (answer.body or "").encode("utf-8", "replace")
        return Reply(
            record=object_of(self._scrubber.data(content)),
            server_time=server_time(headers),
        )

    def upload(self, path: Path, *, name: str, label: str, progress: Callable[[], None]) -> str:
        """Send a file under a name of our choice (``files/<id>``) and return its name."""
        with _WatchedFile(path, progress) as file:
            try:
                sent = self._client.files.upload(
                    file=file,
                    config={"name": name, "display_name": label, "mime_type": REQUESTS_MEDIA_TYPE},
                )
            except (KeyError, TypeError, AttributeError) as exc:
                if file.is_interrupted:
                    raise
                raise UnusableAnswerError(f"the upload was answered oddly: {exc!r}") from exc
        return sent.name or name

    def download(self, name: str, path: Path, progress: Callable[[], None]) -> None:
        """Stream a file to disk.

        Raises:
            UnusableAnswerError: It is a web page.
        """
        with _Sink(path, progress) as sink:
            self._client.files.download(file=name, destination=sink)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._http.close()


class _HttpClient(httpx2.Client):
    """What the SDK sends with.

    Only what reads follows redirects: a create that does is a second request. A call's time-out
    is one in total, since a lease depends on it: the SDK would grant it to each phase anew.
    """

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        total_s = request.extensions["timeout"]["read"]
        phase_s = total_s / 8
        request.extensions["timeout"] = httpx2.Timeout(
            total_s - 3 * phase_s, connect=phase_s, write=phase_s, pool=phase_s
        ).as_dict()
        options["follow_redirects"] = request.method == "GET"
        return super().send(request, **options)


class _WatchedFile(io.FileIO):
    """A file that tells when it is read: an upload may take longer than a lease."""

    def __init__(self, path: Path, progress: Callable[[], None]) -> None:
        super().__init__(path, "rb")
        self._progress = progress
        self.is_interrupted = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on, and tell."""
        self.is_interrupted = True
        self._progress()
        self.is_interrupted = False
        return super().read(-1 if size is None else size) or b""


class _Sink(io.FileIO):
    """Where a download goes; it tells of every piece, and takes no web page for results."""

    def __init__(self, path: Path, progress: Callable[[], None]) -> None:
        super().__init__(path, "wb")
        self._progress = progress
        self._is_blank = True

    def write(self, piece: Any, /) -> int:
        """Take the next piece."""
        start = bytes(piece[:_START_BYTES]).lstrip(_BLANKS)
        if self._is_blank and start.startswith(b"<"):
            raise UnusableAnswerError("HTTP 200 with a web page in place of the results")
        self._is_blank = self._is_blank and not start
        written = super().write(piece)
        self._progress()
        return written


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def google_credentials() -> "tuple[Credentials, str | None]":
    """Return Application Default Credentials and the project that they name.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are none.
    """
    import google.auth  # noqa: PLC0415 - for Vertex AI only

    found: tuple[Credentials, str | None] = google.auth.default(
        scopes=["https://www.googleapis.com/auth/cloud-platform"]
    )
    return found
