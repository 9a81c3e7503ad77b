"""The adapter of the Gemini Developer API: files or inline requests, and operations."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from batchor_core.errors import MissingCredentialsError, ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.model.limits import ProviderLimits
from batchor_core.planning.schema_compiler import CompiledSchema, Dialect
from batchor_core.providers.accounts import account_name, credential_digest
from batchor_core.providers.encoding import encode_json
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.gemini.names import dialect_of, display_name, model_path
from batchor_core.providers.gemini.records import (
    developer_batch,
    inlined_responses,
    operations_of,
)
from batchor_core.providers.gemini.requests import request_encoder
from batchor_core.providers.gemini.results import developer_answer
from batchor_core.providers.gemini.sdk import Reply, SdkClient
from batchor_core.providers.gemini.wire import field, instant_of
from batchor_core.providers.listing import BatchList, ListPage
from batchor_core.providers.loose_json import decode_json
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
from batchor_core.providers.wire import UnusableAnswerError, count_of, id_of, text_of

FILE_LIMITS = ProviderLimits(max_requests=50_000, max_bytes=190_000_000)
"""Google publishes 2 GB a file and no number of requests. A batch is all or nothing here (one that
expires after 48 hours gives no results at all), so chunks are kept to the size of OpenAI's."""

INLINE_LIMITS = ProviderLimits(max_requests=10_000, max_bytes=6_000_000)
"""Google takes less than 20 MB in one call; the SDK escapes other than ASCII characters, which
makes a text up to three times as long. All answers come in one JSON object, which is held in memory
and which Google cannot deliver if it is too large (python-genai#2519): so few requests."""

INLINE_EMBEDDING_LIMITS = ProviderLimits(max_requests=1_000, max_bytes=6_000_000)
"""A vector of 3,072 numbers takes some 60 KB of JSON."""

_INLINE_UP_TO_BYTES = 4_000_000
_DISPLAY_NAME_CHARS = 512
_FILE_ID_CHARS = 40
_GONE = frozenset({403, 404, 410})
_NOT_CANCELLABLE = frozenset({400, 404, 409, 410})
_PROGRESS_LINES = 1_000
_PAGE_SIZE = 100


class GeminiProvider:
    """One account of the Gemini Developer API.

    Args:
        config: Model, account and parameters.

    Raises:
        MissingCredentialsError: No key is given and neither ``GOOGLE_API_KEY`` nor
            ``GEMINI_API_KEY`` is set, or the key cannot be a header's value.
    """

    name = "gemini"
    is_keyless = False

    def __init__(self, config: GeminiProviderConfig) -> None:
        self._config = config
        self._is_embedding = config.endpoint == "embeddings"
        self._key = key_of(config)
        self._scrubber = Scrubber(self._key)
        self._sdk = SdkClient(
            {"vertexai": False, "api_key": self._key},
            base_url=config.base_url,
            api_version=config.api_version,
            timeout_s=config.timeout_s,
            scrubber=self._scrubber,
        )
        self._mapped = self._sdk.error_mapping().call
        self._list = BatchList(self._list_page, _PAGE_SIZE)
        self.dialect: Dialect = dialect_of(config)

    @property
    def limits(self) -> ProviderLimits:
        """The bounds on one batch."""
        if self._config.input_mode != "inline":
            return FILE_LIMITS
        return INLINE_EMBEDDING_LIMITS if self._is_embedding else INLINE_LIMITS

    @cached_property
    def host(self) -> str:
        """Host and port of the base URL."""
        return urlsplit(self._sdk.base_url).netloc.rpartition("@")[2]

    @cached_property
    def account(self) -> str:
        """Provider, host, and a short digest of the user's name."""
        return account_name("gemini", self.host, self._config.credentials)

    @cached_property
    def credential(self) -> str:
        """A short digest of the key."""
        return credential_digest(self._key)

    @cached_property
    def scope(self) -> str:
        """The queue that this account's runs of this model share."""
        return self._config.quota_scope or f"gemini:{self.host}:{self._config.model}"

    def encoder(
        self, *, system_prompt: str | None, schema: CompiledSchema | None
    ) -> RequestEncoder:
        """Return the endpoint's encoder."""
        return request_encoder(
            self._config, host=self.host, system_prompt=system_prompt, schema=schema
        )

    def upload(self, path: Path, *, key: str, progress: Callable[[], None] = no_progress) -> Upload:
        """Send a request file under a name made from ``key``, or learn the provider's time.

        A name that is taken is success: it was uploaded before, and the answer got lost.
        """
        if self._is_inline(path):
            with self._mapped():
                return Upload(ref=None, server_time=self._list_call("", 1).server_time)
        name = _file_name(key)
        label = display_name(key, _DISPLAY_NAME_CHARS)
        with self._mapped(harmless=frozenset({409})):
            name = self._sdk.upload(path, name=name, label=label, progress=progress)
        uploaded = self._uploaded(name)
        if count_of(field(uploaded.record, "sizeBytes")) not in (None, path.stat().st_size):
            self._delete_file(name)
            raise _transient("upload_incomplete", f"{name} is not what was sent; it is sent anew")
        return Upload(ref=name, server_time=uploaded.server_time)

    def create(
        self,
        *,
        upload_ref: str | None,
        path: Path,
        key: str,
        tags: Mapping[str, str],  # noqa: ARG002 - there is no place for them but the name
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a batch, over an uploaded file or with the requests in the call."""
        method = "asyncBatchEmbedContent" if self._is_embedding else "batchGenerateContent"
        source: dict[str, Any]
        if upload_ref is None:
            source = {"requests": {"requests": _inlined(path)}}
        else:
            # The spelling that the SDK uses for each (facts on providers, 1.3).
            source = {"file_name" if self._is_embedding else "fileName": upload_ref}
        label = display_name(key, _DISPLAY_NAME_CHARS)
        body = {"batch": {"displayName": label, "inputConfig": source}}
        with self._mapped(creating=True):
            target = f"{model_path(self._config.model)}:{method}"
            return developer_batch(self._sdk.call("post", target, body, timeout_s=timeout_s).record)

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one batch."""
        with self._mapped():
            return developer_batch(self._sdk.call("get", _path(batch_id)).record)

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that the first list pages show."""
        return self._list.those(batch_ids)

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """Return one page of the account's batches."""
        page = self._list_page(position)
        return page.batches, page.cursor

    def find(self, wanted: Wanted) -> Sighting:
        """Look for the batches of one submission in the list, by name, else by request file."""
        label = display_name(wanted.key, _DISPLAY_NAME_CHARS)

        def is_ours(batch: ProviderBatch) -> bool:
            return batch.key == label or (
                wanted.upload_ref is not None and batch.upload_ref == wanted.upload_ref
            )

        return self._list.find(is_ours, wanted.since or self._uploaded_at(wanted.upload_ref))

    def list_batches(self, *, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return the account's batches."""
        return self._list.down_to(since)

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel."""
        with self._mapped(harmless=_NOT_CANCELLABLE):
            try:
                self._sdk.call("post", f"{_path(batch_id)}:cancel")
            except UnusableAnswerError:
                return  # the status was 200, and that is all that it says

    def download_results(
        self,
        result: Mapping[str, Any],
        folder: Path,
        progress: Callable[[], None],
        *,
        leave_out_missing: bool = False,
    ) -> list[RawPart]:
        """Download the file of answers, or write those that the batch holds itself to one."""
        path = folder / "output.jsonl"
        file_name, batch_id = id_of(result, "responses_file"), id_of(result, "inlined_in")
        try:
            if file_name:
                with self._mapped():
                    self._sdk.download(file_name, path, progress)
            elif batch_id:
                self._write_inlined(batch_id, path, progress)
            else:
                return []
        except ProviderError as exc:
            if leave_out_missing and exc.fault.kind is FaultKind.MISSING:
                return []
            raise
        return [RawPart(kind="output", path=path)]

    def decode(self, part: RawPart, line: bytes) -> Answer | None:  # noqa: ARG002 - one kind only
        """Decode one line."""
        return self._scrubber.decoded(developer_answer, line)

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:
        """Remove the request file, and a file of answers where Google lets us.

        It does not if the id is longer than 40 characters, as the usual one is (facts on
        providers, 1.3); that file expires after two days.
        """
        names = [upload_ref, id_of(result or {}, "responses_file")]
        for name in filter(None, names):
            if len(name.removeprefix("files/")) <= _FILE_ID_CHARS:
                self._delete_file(name)

    def close(self) -> None:
        """Close the SDK's connections."""
        self._sdk.close()

    def _is_inline(self, path: Path) -> bool:
        if self._config.input_mode == "auto":
            return not self._is_embedding and path.stat().st_size <= _INLINE_UP_TO_BYTES
        return self._config.input_mode == "inline"

    def _uploaded(self, name: str) -> Reply:
        try:
            with self._mapped():
                return self._sdk.call("get", _path(name))
        except ProviderError as exc:
            if exc.fault.kind is not FaultKind.MISSING:
                raise
            raise _transient("upload_missing", f"{name} was sent, but is not there") from exc

    def _uploaded_at(self, upload_ref: str | None) -> datetime | None:
        """Return when the file was uploaded: no batch over it is older."""
        if upload_ref is None:
            return None
        try:
            with self._mapped():
                record = self._sdk.call("get", _path(upload_ref)).record
        except ProviderError as exc:
            if exc.fault.kind is not FaultKind.MISSING:
                raise
            return None
        return instant_of(field(record, "createTime"))

    def _delete_file(self, name: str) -> None:
        with self._mapped(harmless=_GONE):
            self._sdk.call("delete", _path(name))

    def _write_inlined(self, batch_id: str, path: Path, progress: Callable[[], None]) -> None:
        with self._mapped():
            operation = self._sdk.call("get", _path(batch_id)).record
        with path.open("wb") as file:
            for number, entry in enumerate(inlined_responses(operation)):
                line = _line_of(entry)
                if line is not None:
                    file.write(encode_json(line) + b"\n")
                if number % _PROGRESS_LINES == 0:
                    progress()

    def _list_page(self, token: str) -> ListPage:
        with self._mapped():
            reply = self._list_call(token, _PAGE_SIZE)
            operations = operations_of(reply.record, "operations")
            return ListPage(
                batches=[developer_batch(operation) for operation in operations],
                cursor=text_of(field(reply.record, "nextPageToken")),
                server_time=reply.server_time,
            )

    def _list_call(self, token: str, size: int) -> Reply:
        query = {"pageSize": size, **({"pageToken": token} if token else {})}
        return self._sdk.call("get", f"batches?{urlencode(query)}")


def key_of(config: GeminiProviderConfig) -> str:
    """Return the account's key, in the SDK's order of environment variables."""
    given = config.api_key.get_secret_value() if config.api_key else None
    key = given or os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY") or ""
    if not key.strip():
        raise MissingCredentialsError(
            "no Gemini key: set GOOGLE_API_KEY or GEMINI_API_KEY, or pass api_key to "
            "GeminiProviderConfig"
        )
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise MissingCredentialsError(
            "the Gemini key has characters that no key has (spaces or a line break around it?)"
        )
    return key


def _file_name(key: str) -> str:
    """Return a file's name as the API takes it: 40 characters of a-z, 0-9 and "-"."""
    digest = hashlib.blake2b(key.encode(), digest_size=16, person=b"batchor-upload")
    return f"files/batchor-{digest.hexdigest()}"


def _inlined(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a request file as the create call takes them."""
    requests = []
    for line in filter(None, path.read_bytes().split(b"\n")):
        record = decode_json(line)
        requests.append({"request": record["request"], "metadata": {"key": record["key"]}})
    return requests


def _line_of(entry: object) -> dict[str, Any] | None:
    """Return an inlined response in the shape of a line; None for one that has no key."""
    key = field(entry, "metadata", "key")
    if not isinstance(key, str):
        return None
    return {
        "key": key,
        **{name: value for name in ("response", "error") if (value := field(entry, name))},
    }


def _path(name: str) -> str:
    return quote(name, safe="/")


def _transient(code: str, message: str) -> ProviderError:
    fault = Fault(kind=FaultKind.TRANSIENT, owner=FaultOwner.PROVIDER, code=code, message=message)
    return ProviderError(f"{code}: {message}", fault)
