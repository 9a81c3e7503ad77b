"""The OpenAI adapter: one HTTP request per method, answers parsed here and not by the SDK."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from batchor_core.errors import MissingCredentialsError, ProviderError
from batchor_core.ids import path_segment
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.model.limits import ProviderLimits
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.openai.faults import batch_fault, call_fault
from batchor_core.providers.openai.requests import ENDPOINT_PATHS
from batchor_core.providers.openai.results import decode_line
from batchor_core.providers.protocol import (
    Answer,
    BatchPhase,
    ProviderBatch,
    RawPart,
    Sighting,
    Upload,
)

if TYPE_CHECKING:
    from openai import OpenAI

LIMITS = ProviderLimits(max_requests=50_000, max_bytes=190_000_000)
"""50,000 requests and 200 MB a file (the SDK's documentation); 5 % taken off the bytes."""

METADATA_KEY = "batchor_key"
_LIST_PAGE = 100
_MAX_PAGES = 100
_CLOCK_SLACK = timedelta(seconds=5)
_ENDED = frozenset({"completed", "succeeded", "expired", "cancelled", "canceled"})
_REJECTED = frozenset({"failed"})


class OpenAIProvider:
    """One account of OpenAI, or of a host that speaks its protocol.

    Args:
        config: Model, account and parameters.

    Raises:
        MissingCredentialsError: No key is given and ``OPENAI_API_KEY`` is not set.
    """

    name = "openai"
    limits = LIMITS

    def __init__(self, config: OpenAIProviderConfig) -> None:
        self._config = config
        _ = self._client  # a missing key shows before anything else is done

    @cached_property
    def _client(self) -> "OpenAI":
        import openai  # noqa: PLC0415 - half a second that a run on another provider need not pay

        key = self._config.api_key
        try:
            return openai.OpenAI(
                api_key=key.get_secret_value() if key else None,
                base_url=self._config.base_url,
                organization=self._config.organization,
                project=self._config.project,
                timeout=self._config.timeout_s,
                max_retries=0,  # the SDK would re-POST a create after a dropped connection
            )
        except openai.OpenAIError as exc:
            raise MissingCredentialsError(
                "no OpenAI key: set OPENAI_API_KEY, or pass api_key to OpenAIProviderConfig"
            ) from exc

    @cached_property
    def host(self) -> str:
        """Host and port of the base URL."""
        return urlsplit(str(self._client.base_url)).netloc

    @cached_property
    def account(self) -> str:
        """Provider, host, and a short digest of key, organisation and project."""
        parts = [self._client.api_key, self._client.organization, self._client.project]
        secret = "\0".join(part or "" for part in parts)
        digest = hashlib.blake2b(secret.encode(), digest_size=6, person=b"batchor-account")
        return f"openai:{self.host}:{digest.hexdigest()}"

    @cached_property
    def scope(self) -> str:
        """The queue that this account's runs of this model share."""
        if self._config.quota_scope:
            return self._config.quota_scope
        owner = [self._client.organization or "", self._client.project or ""]
        return ":".join(["openai", self.host, *owner, self._config.model])

    def upload(self, path: Path, *, key: str) -> Upload:
        """Send a request file under a name made from ``key``."""
        with path.open("rb") as file, _mapped():
            answer = self._client.files.with_raw_response.create(
                file=(_file_name(key), file, "application/jsonl"), purpose="batch"
            )
            record = _object(answer.http_response)
        return Upload(ref=_required(record, "id"), server_time=_server_time(answer.http_response))

    def create(
        self,
        *,
        upload_ref: str | None,
        path: Path,  # noqa: ARG002 - for providers that take the requests in this call
        key: str,
        tags: Mapping[str, str],
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a batch over an uploaded file."""
        endpoint: Any = ENDPOINT_PATHS[self._config.endpoint]
        with _mapped(creating=True):
            answer = self._client.batches.with_raw_response.create(
                input_file_id=upload_ref or "",
                endpoint=endpoint,
                completion_window="24h",
                metadata={METADATA_KEY: key, **tags},
                timeout=timeout_s,
            )
            return _batch(_object(answer.http_response))

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one batch."""
        with _mapped():
            answer = self._client.batches.with_raw_response.retrieve(batch_id)
            return _batch(_object(answer.http_response))

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that the first list pages show."""
        wanted = set(batch_ids)
        pages = 1 + len(wanted) // _LIST_PAGE
        found: dict[str, ProviderBatch] = {}
        if len(wanted) <= pages:
            return found
        for page, _ in self._pages(pages):
            found.update((b.batch_id, b) for b in page if b.batch_id in wanted)
            if len(found) == len(wanted):
                break
        return found

    def find(self, *, upload_ref: str | None, key: str) -> Sighting:
        """Look for the batches of one submission in the list."""
        oldest = self._uploaded_at(upload_ref) if upload_ref else None
        matches: list[ProviderBatch] = []
        server_time: datetime | None = None
        for page, page_time in self._pages(_MAX_PAGES):
            server_time = server_time or page_time
            matches += [b for b in page if _is_ours(b, upload_ref, key)]
            if oldest and any(b.created_at and b.created_at < oldest for b in page):
                break
        return Sighting(matches=matches, server_time=server_time)

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel; a batch that has ended already answers 400 or 409, which is no error."""
        try:
            with _mapped():
                self._client.batches.with_raw_response.cancel(batch_id)
        except ProviderError as exc:
            if exc.fault.kind not in (FaultKind.REJECTED, FaultKind.MISSING):
                raise

    def download_results(
        self, result: Mapping[str, Any], folder: Path, progress: Callable[[], None]
    ) -> list[RawPart]:
        """Download the output file and the error file, where there are such."""
        parts = []
        for kind in ("output", "errors"):
            file_id = result.get(f"{kind}_file_id")
            if file_id:
                path = folder / f"{kind}.jsonl"
                self._download(str(file_id), path, progress)
                parts.append(RawPart(kind=kind, path=path))
        return parts

    def decode(self, part: RawPart, line: bytes) -> Answer | None:  # noqa: ARG002 - same in both
        """Decode one line of either file."""
        return decode_line(line)

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:
        """Remove the request file and the result files."""
        ids = [upload_ref, *((result or {}).get(f"{k}_file_id") for k in ("output", "errors"))]
        for file_id in filter(None, ids):
            try:
                with _mapped():
                    self._client.files.with_raw_response.delete(str(file_id))
            except ProviderError as exc:
                if exc.fault.kind is not FaultKind.MISSING:
                    raise

    def close(self) -> None:
        """Close the SDK's connections."""
        if "_client" in self.__dict__:
            self._client.close()

    def _download(self, file_id: str, path: Path, progress: Callable[[], None]) -> None:
        with (
            _mapped(),
            self._client.files.with_streaming_response.content(file_id) as answer,
            path.open("wb") as file,
        ):
            for block in answer.iter_bytes(1 << 20):
                file.write(block)
                progress()

    def _uploaded_at(self, upload_ref: str) -> datetime | None:
        """Return when the file was uploaded, less some slack: no batch over it is older."""
        try:
            with _mapped():
                answer = self._client.files.with_raw_response.retrieve(upload_ref)
                created = _instant(_object(answer.http_response).get("created_at"))
        except ProviderError as exc:
            if exc.fault.kind is not FaultKind.MISSING:
                raise
            return None
        return created - _CLOCK_SLACK if created else None

    def _pages(self, pages: int) -> Iterator[tuple[list[ProviderBatch], datetime | None]]:
        """Yield list pages, newest first; bounded even if the server repeats its cursor."""
        from openai import omit  # noqa: PLC0415 - loaded already: a client exists

        after: str | None = None
        seen: set[str] = set()
        for _ in range(pages):
            with _mapped():
                answer = self._client.batches.with_raw_response.list(
                    limit=_LIST_PAGE, after=after or omit
                )
                page = _object(answer.http_response)
            data = page.get("data")
            records = [r for r in data if isinstance(r, dict)] if isinstance(data, list) else []
            yield [_batch(r) for r in records if r.get("id")], _server_time(answer.http_response)
            after = str(page.get("last_id") or (records[-1].get("id") if records else "") or "")
            if not page.get("has_more") or not after or after in seen:
                return
            seen.add(after)


@contextmanager
def _mapped(*, creating: bool = False) -> Iterator[None]:
    """Map every failure of the SDK and of the transport to ``ProviderError``, once."""
    import openai  # noqa: PLC0415 - loaded already: a client exists

    try:
        yield
    except openai.APIStatusError as exc:
        headers = {name.lower(): value for name, value in exc.response.headers.items()}
        fault = call_fault(exc.status_code, exc.body, headers, creating=creating)
        raise ProviderError(f"{fault.code}: {fault.message}", fault) from exc
    except (openai.APIError, httpx2.HTTPError, _UnusableAnswerError, ValueError) as exc:
        fault = Fault(
            kind=FaultKind.UNKNOWN_OUTCOME if creating else FaultKind.TRANSIENT,
            owner=FaultOwner.NETWORK,
            code=type(exc).__name__,
            message=f"{type(exc).__name__}: {exc}"[:300],
        )
        raise ProviderError(fault.message, fault) from exc


class _UnusableAnswerError(Exception):
    """A 200 whose body is not the JSON object that the protocol promises."""


def _object(response: httpx2.Response) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if not isinstance(decoded, dict):
        raise _UnusableAnswerError(
            f"HTTP {response.status_code} with a body that is no JSON object"
        )
    return decoded


def _batch(record: Mapping[str, Any]) -> ProviderBatch:
    status = str(record.get("status") or "").lower()
    metadata = record.get("metadata")
    key = metadata.get(METADATA_KEY) if isinstance(metadata, Mapping) else None
    output, errors = record.get("output_file_id") or None, record.get("error_file_id") or None
    phase = _phase(status, has_results=bool(output or errors))
    fault, lines = None, None
    if phase is BatchPhase.REJECTED:
        fault, lines = batch_fault(record.get("errors"))
    return ProviderBatch(
        batch_id=_required(record, "id"),
        phase=phase,
        status=status or "unknown",
        key=key if isinstance(key, str) else None,
        upload_ref=record.get("input_file_id") or None,
        created_at=_instant(record.get("created_at")),
        counts=_counts(record.get("request_counts")),
        result={"output_file_id": output, "errors_file_id": errors},
        fault=fault,
        line_faults=lines,
    )


def _phase(status: str, *, has_results: bool) -> BatchPhase:
    if status in _ENDED:
        return BatchPhase.ENDED
    if status in _REJECTED:
        return BatchPhase.ENDED if has_results else BatchPhase.REJECTED
    return BatchPhase.WORKING  # validating, in_progress, finalizing, and words we do not know


def _counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, Mapping):
        return None
    return {str(k): v for k, v in counts.items() if isinstance(v, int)}


def _is_ours(batch: ProviderBatch, upload_ref: str | None, key: str) -> bool:
    if upload_ref and batch.upload_ref:  # first: Azure returns no metadata
        return batch.upload_ref == upload_ref
    return batch.key == key


def _required(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str) or not value:
        raise _UnusableAnswerError(f"an answer without {field!r}")
    return value


def _instant(value: object) -> datetime | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return datetime.fromtimestamp(value, UTC)
    return None


def _server_time(response: httpx2.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(response.headers["date"]).astimezone(UTC)
    except (KeyError, ValueError, TypeError):
        return None


def _file_name(key: str) -> str:
    return f"{path_segment(key.replace('/', '_'))}.jsonl"
