"""The OpenAI adapter: one HTTP request per method, answers parsed here and not by the SDK."""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from batchor_core.errors import ProviderError
from batchor_core.ids import path_segment
from batchor_core.model.faults import FaultKind
from batchor_core.model.limits import ProviderLimits
from batchor_core.planning.schema_compiler import CompiledSchema, Dialect
from batchor_core.providers.accounts import account_name, credential_digest
from batchor_core.providers.error_mapping import ErrorMapping
from batchor_core.providers.http_dates import server_time
from batchor_core.providers.listing import BatchList, ListPage
from batchor_core.providers.openai.client import open_client
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.openai.endpoints import CODECS
from batchor_core.providers.openai.faults import call_fault
from batchor_core.providers.openai.records import METADATA_KEY, batch_of, page_of
from batchor_core.providers.openai.requests import endpoint_path
from batchor_core.providers.protocol import (
    Answer,
    ProviderBatch,
    RawPart,
    RequestEncoder,
    Sighting,
    Upload,
    Wanted,
    no_progress,
)
from batchor_core.providers.scrubbing import Scrubber
from batchor_core.providers.wire import (
    UnusableAnswerError,
    id_of,
    instant_of,
    object_of,
    required_id,
)

LIMITS = ProviderLimits(max_requests=50_000, max_bytes=190_000_000)
"""50,000 requests and 200 MB a file (the SDK's documentation); 5 % taken off the bytes."""

_LIST_PAGE = 100
_GONE = frozenset({404, 410})
_NOT_CANCELLABLE = frozenset({400, 404, 409, 410})


class _WatchedFile(io.FileIO):
    """A file that tells when it is read: an upload may take longer than a lease."""

    def __init__(self, path: Path, progress: Callable[[], None]) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on, and tell."""
        self._progress()
        return super().read(-1 if size is None else size) or b""


class OpenAIProvider:
    """One account of OpenAI, or of a host that speaks its protocol.

    Args:
        config: Model, account and parameters.

    Raises:
        MissingCredentialsError: No key is given and ``OPENAI_API_KEY`` (with Azure's
            ``api_version``: ``AZURE_OPENAI_API_KEY``) is not set, or the key cannot be a header's
            value.
    """

    name = "openai"
    limits = LIMITS
    is_keyless = False
    dialect = Dialect.OPENAI

    def __init__(self, config: OpenAIProviderConfig) -> None:
        self._config = config
        self._codec = CODECS[config.endpoint]
        self._client = open_client(config)
        self._scrubber = Scrubber(self._client.api_key)
        self._mapped = self._error_mapping().call
        self._list = BatchList(self._page, _LIST_PAGE)

    def _error_mapping(self) -> ErrorMapping:
        import openai  # noqa: PLC0415 - loaded already: a client exists

        return ErrorMapping(
            self._scrubber,
            call_fault,
            status_error=openai.APIStatusError,
            sdk_error=openai.APIError,
        )

    @cached_property
    def host(self) -> str:
        """Host and port of the base URL, without credentials that it may hold."""
        return urlsplit(str(self._client.base_url)).netloc.rpartition("@")[2]

    @cached_property
    def account(self) -> str:
        """Provider, host, and a short digest of organisation, project and the user's name."""
        return account_name("openai", self.host, *self._owner, self._config.credentials)

    @cached_property
    def credential(self) -> str:
        """A short digest of key, organisation and project."""
        return credential_digest(self._client.api_key, *self._owner)

    @property
    def _owner(self) -> tuple[str | None, str | None]:
        return self._client.organization, self._client.project

    @cached_property
    def scope(self) -> str:
        """The queue that this account's runs of this model share."""
        if self._config.quota_scope:
            return self._config.quota_scope
        owner = [self._client.organization or "", self._client.project or ""]
        return ":".join(["openai", self.host, *owner, self._config.model])

    def encoder(
        self, *, system_prompt: str | None, schema: CompiledSchema | None
    ) -> RequestEncoder:
        """Return the endpoint's encoder."""
        return self._codec.encoder(
            self._config, host=self.host, system_prompt=system_prompt, schema=schema
        )

    def upload(self, path: Path, *, key: str, progress: Callable[[], None] = no_progress) -> Upload:
        """Send a request file under a name made from ``key``."""
        with _WatchedFile(path, progress) as file, self._mapped():
            answer = self._client.files.with_raw_response.create(
                file=(_file_name(key), file, "application/jsonl"), purpose="batch"
            )
            ref = required_id(object_of(answer.http_response.content))
        return Upload(ref=ref, server_time=server_time(answer.http_response.headers))

    def create(
        self,
        *,
        upload_ref: str | None,
        path: Path,  # noqa: ARG002 - for providers that take the requests in this call
        key: str,
        tags: Mapping[str, str],
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a batch over an uploaded file.

        Not through ``batches.create``, which follows redirects: that would be a second request.
        Perplexity honours the header; to others it means nothing.
        """
        with self._mapped(creating=True):
            idempotency_key = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
            answer = self._client.post(
                "/batches",
                cast_to=httpx2.Response,
                body={
                    "completion_window": "24h",
                    "endpoint": endpoint_path(self._config.endpoint, self._config),
                    "input_file_id": upload_ref or "",
                    "metadata": {METADATA_KEY: key, **tags},
                },
                options={
                    "headers": {"Idempotency-Key": idempotency_key},
                    "timeout": _in_total(timeout_s),
                    "follow_redirects": False,
                },
            )
            return batch_of(object_of(answer.content))

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one batch."""
        with self._mapped():
            answer = self._client.batches.with_raw_response.retrieve(batch_id)
            return batch_of(self._record(answer.http_response))

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that the first list pages show."""
        return self._list.those(batch_ids)

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """Return one page of the account's batches."""
        page = self._page(position)
        return page.batches, page.cursor

    def find(self, wanted: Wanted) -> Sighting:
        """Look for the batches of one submission in the list."""

        def is_ours(batch: ProviderBatch) -> bool:
            return _is_ours(batch, wanted.upload_ref, wanted.key)

        return self._list.find(is_ours, wanted.since or self._uploaded_at(wanted.upload_ref))

    def list_batches(self, *, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return the account's batches, newest first."""
        return self._list.down_to(since)

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel; a batch that has ended already answers 400 or 409."""
        with self._mapped(harmless=_NOT_CANCELLABLE):
            self._client.batches.with_raw_response.cancel(batch_id)

    def download_results(
        self,
        result: Mapping[str, Any],
        folder: Path,
        progress: Callable[[], None],
        *,
        leave_out_missing: bool = False,
    ) -> list[RawPart]:
        """Download the output file and the error file, where there are such."""
        parts = []
        for kind in ("output", "errors"):
            file_id = id_of(result, f"{kind}_file_id")
            if file_id:
                path = folder / f"{kind}.jsonl"
                try:
                    self._download(file_id, path, progress)
                except ProviderError as exc:
                    if leave_out_missing and exc.fault.kind is FaultKind.MISSING:
                        continue
                    raise
                parts.append(RawPart(kind=kind, path=path))
        return parts

    def decode(self, part: RawPart, line: bytes) -> Answer | None:  # noqa: ARG002 - same in both
        """Decode one line of either file."""
        return self._scrubber.decoded(self._codec.decode, line)

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:
        """Remove the request file and the result files."""
        files = result or {}
        ids = [upload_ref, id_of(files, "output_file_id"), id_of(files, "errors_file_id")]
        for file_id in filter(None, ids):
            with self._mapped(harmless=_GONE):
                self._client.files.with_raw_response.delete(file_id)

    def close(self) -> None:
        """Close the SDK's connections."""
        self._client.close()

    def _record(self, response: httpx2.Response) -> dict[str, Any]:
        return object_of(self._scrubber.data(response.content))

    def _download(self, file_id: str, path: Path, progress: Callable[[], None]) -> None:
        with (
            self._mapped(),
            self._client.files.with_streaming_response.content(file_id) as answer,
            path.open("wb") as file,
        ):
            if answer.headers.get("content-type", "").startswith("text/html"):
                raise UnusableAnswerError("HTTP 200 with a web page in place of the results")
            for block in answer.iter_bytes(1 << 20):
                file.write(block)
                progress()

    def _uploaded_at(self, upload_ref: str | None) -> datetime | None:
        """Return when the file was uploaded: no batch over it is older."""
        if upload_ref is None:
            return None
        try:
            with self._mapped():
                answer = self._client.files.with_raw_response.retrieve(upload_ref)
                return instant_of(self._record(answer.http_response).get("created_at"))
        except ProviderError as exc:
            if exc.fault.kind is not FaultKind.MISSING:
                raise
            return None

    def _page(self, after: str) -> ListPage:
        """Return the page behind a cursor."""
        from openai import omit  # noqa: PLC0415 - loaded already: a client exists

        with self._mapped():
            answer = self._client.batches.with_raw_response.list(
                limit=_LIST_PAGE, after=after or omit
            )
            page = self._record(answer.http_response)
            batches = [batch_of(record) for record in page_of(page)]
        last = id_of(page, "last_id") or (batches[-1].batch_id if batches else "")
        return ListPage(
            batches=batches,
            server_time=server_time(answer.http_response.headers),
            cursor=last if page.get("has_more") else "",
        )


def _in_total(timeout_s: float) -> httpx2.Timeout:
    """Return time-outs of a call's phases that add up to ``timeout_s``: a lease depends on it."""
    phase_s = timeout_s / 8
    return httpx2.Timeout(timeout_s - 3 * phase_s, connect=phase_s, write=phase_s, pool=phase_s)


def _is_ours(batch: ProviderBatch, upload_ref: str | None, key: str) -> bool:
    if upload_ref and batch.upload_ref:  # first: Azure returns no metadata
        return batch.upload_ref == upload_ref
    return batch.key == key


def _file_name(key: str) -> str:
    return f"{path_segment(key.replace('/', '_'))}.jsonl"
