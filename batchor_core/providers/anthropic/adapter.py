"""The Anthropic adapter: one HTTP request per method, answers parsed here and not by the SDK."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx2

from batchor_core.errors import ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.model.limits import ProviderLimits
from batchor_core.planning.schema_compiler import CompiledSchema, Dialect
from batchor_core.providers.accounts import account_name, credential_digest
from batchor_core.providers.anthropic.client import key_of, open_client
from batchor_core.providers.anthropic.config import AnthropicProviderConfig
from batchor_core.providers.anthropic.create_body import CreateBody
from batchor_core.providers.anthropic.faults import call_fault
from batchor_core.providers.anthropic.proof import PROOF_BLOCK_BYTES, names_chunk
from batchor_core.providers.anthropic.records import batch_of, page_of
from batchor_core.providers.anthropic.requests import MessagesEncoder
from batchor_core.providers.anthropic.results import decode_line
from batchor_core.providers.error_mapping import ErrorMapping
from batchor_core.providers.http_dates import server_time
from batchor_core.providers.listing import (
    CLOCK_SLACK,
    MAX_PAGES,
    BatchList,
    ListPage,
    is_older,
    list_incomplete,
)
from batchor_core.providers.protocol import (
    Answer,
    BatchPhase,
    ProviderBatch,
    RawPart,
    RequestEncoder,
    Sighting,
    Upload,
    Wanted,
    no_progress,
)
from batchor_core.providers.scrubbing import Scrubber
from batchor_core.providers.wire import UnusableAnswerError, id_of, object_of

LIMITS = ProviderLimits(max_requests=100_000, max_bytes=32_000_000)
"""100,000 requests; of the 256 MB that a create call may have, as much as is sent within its
time-out (half of 40 s by default) over a line of 13 Mbit/s."""

BATCHES_PATH = "/v1/messages/batches"
_LIST_PAGE = 100
_PAGES_WITHOUT_SINCE = 10
"""How far back to look where nothing says when: 1,000 batches."""
_BLOCK_BYTES = 1 << 20
_NOT_CANCELLABLE = frozenset({400, 404, 409, 410})
_NOT_DELETABLE = frozenset({400, 404, 409, 410})


class AnthropicProvider:
    """One account of Anthropic, or of a host that speaks its protocol.

    Args:
        config: Model, account and parameters.

    Raises:
        MissingCredentialsError: No key is given, and neither ``ANTHROPIC_API_KEY`` nor
            ``ANTHROPIC_AUTH_TOKEN`` is set, or the key cannot be a header's value. Profiles and
            federated identities of the SDK are not used: we could not keep their tokens out of
            messages.
    """

    name = "anthropic"
    limits = LIMITS
    is_keyless = True
    dialect = Dialect.ANTHROPIC

    def __init__(self, config: AnthropicProviderConfig) -> None:
        self._config = config
        self._client = open_client(config)
        self._key = key_of(self._client)
        self._scrubber = Scrubber(self._key)
        self._mapped = self._error_mapping().call
        self._list = BatchList(self._page, _LIST_PAGE)

    def _error_mapping(self) -> ErrorMapping:
        import anthropic  # noqa: PLC0415 - loaded already: a client exists

        return ErrorMapping(
            self._scrubber,
            call_fault,
            status_error=anthropic.APIStatusError,
            sdk_error=anthropic.AnthropicError,
        )

    @cached_property
    def host(self) -> str:
        """Host and port of the base URL, without credentials that it may hold."""
        return self._client.base_url.netloc.decode("ascii", "replace")

    @cached_property
    def account(self) -> str:
        """Provider, host, and a short digest of workspace and the user's name."""
        names = (self._config.workspace, self._config.credentials)
        return account_name("anthropic", self.host, *names)

    @cached_property
    def credential(self) -> str:
        """A short digest of key and workspace."""
        return credential_digest(self._key, self._config.workspace)

    @cached_property
    def scope(self) -> str:
        """The queue that this account's runs of this model share."""
        if self._config.quota_scope:
            return self._config.quota_scope
        return ":".join(["anthropic", self.host, self._config.workspace or "", self._config.model])

    def encoder(
        self, *, system_prompt: str | None, schema: CompiledSchema | None
    ) -> RequestEncoder:
        """Return the encoder of Messages."""
        return MessagesEncoder(
            self._config, host=self.host, system_prompt=system_prompt, schema=schema
        )

    def upload(
        self,
        path: Path,  # noqa: ARG002 - the create call takes it
        *,
        key: str,  # noqa: ARG002 - no name to give
        progress: Callable[[], None] = no_progress,  # noqa: ARG002 - nothing is sent
    ) -> Upload:
        """Send nothing, but learn the provider's time: what is created later is not older."""
        _, response = self._list_call({"limit": 1})
        return Upload(ref=None, server_time=server_time(response.headers))

    def create(
        self,
        *,
        upload_ref: str | None,  # noqa: ARG002 - none
        path: Path,
        key: str,  # noqa: ARG002 - nothing of ours is kept but the custom ids
        tags: Mapping[str, str],  # noqa: ARG002 - nor these
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a batch of the requests in a file, which is read while it is sent.

        Not through ``batches.create``, which wants the requests as objects and follows redirects:
        that would be a second request.
        """
        body = CreateBody(path, timeout_s / 2)
        with self._mapped(creating=True):
            answer = self._client.post(
                BATCHES_PATH,
                cast_to=httpx2.Response,
                content=body,
                options={
                    "headers": {"content-length": str(body.size)},
                    "timeout": _in_total(timeout_s / 2),
                    "follow_redirects": False,
                },
            )
            return batch_of(object_of(answer.content))

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one batch."""
        with self._mapped():
            answer = self._client.messages.batches.with_raw_response.retrieve(batch_id)
            return batch_of(self._record(answer.http_response))

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that the first list pages show."""
        return self._list.those(batch_ids)

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """Return one page of the account's batches."""
        page = self._page(position)
        return page.batches, page.cursor

    def find(self, wanted: Wanted) -> Sighting:
        """Look for batches of the right time and size; their results prove whose they are.

        A list that ends, or breaks off, before the time of the upload proves nothing, unless what
        we look for has shown up in it.
        """
        oldest = wanted.since - CLOCK_SLACK if wanted.since else None
        alike: dict[str, ProviderBatch] = {}
        server_time: datetime | None = None
        breaks_off = False
        for page in self._list.pages(MAX_PAGES if oldest else _PAGES_WITHOUT_SINCE):
            server_time = server_time or page.server_time
            alike.update((b.batch_id, b) for b in page.batches if _is_alike(b, wanted, oldest))
            if oldest and page.reaches_back_to(oldest):
                break
            breaks_off = page.breaks_off
        working = [batch for batch in alike.values() if batch.phase is BatchPhase.WORKING]
        ended = [batch for batch in alike.values() if batch.phase is BatchPhase.ENDED]
        matches = [batch for batch in ended if self._is_proven(batch, wanted.chunk_token)]
        if oldest and breaks_off and not matches:
            raise list_incomplete()
        return Sighting(
            matches=matches, candidates=sorted(working, key=_age), server_time=server_time
        )

    def list_batches(self, *, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return the account's batches, newest first."""
        return self._list.down_to(since)

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel; a batch that has ended already answers 400 or 409."""
        with self._mapped(harmless=_NOT_CANCELLABLE):
            self._client.messages.batches.with_raw_response.cancel(batch_id)

    def download_results(
        self,
        result: Mapping[str, Any],
        folder: Path,
        progress: Callable[[], None],
        *,
        leave_out_missing: bool = False,
    ) -> list[RawPart]:
        """Download the one file of results."""
        path = folder / "output.jsonl"
        try:
            with self._results(result) as blocks, path.open("wb") as file:
                for block in blocks:
                    file.write(block)
                    progress()
        except ProviderError as exc:
            if leave_out_missing and exc.fault.kind is FaultKind.MISSING:
                return []
            raise
        return [RawPart(kind="output", path=path)]

    def decode(self, part: RawPart, line: bytes) -> Answer | None:  # noqa: ARG002 - there is one
        """Decode one line."""
        return self._scrubber.decoded(decode_line, line)

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:  # noqa: ARG002 - nothing is uploaded
        """Remove an ended batch with its results; one that is at work stays."""
        batch_id = id_of(result or {}, "batch_id")
        if batch_id:
            with self._mapped(harmless=_NOT_DELETABLE):
                self._client.messages.batches.with_raw_response.delete(batch_id)

    def close(self) -> None:
        """Close the SDK's connections."""
        self._client.close()

    def _record(self, response: httpx2.Response) -> dict[str, Any]:
        return object_of(self._scrubber.data(response.content))

    def _page(self, after: str) -> ListPage:
        query: dict[str, object] = {"limit": _LIST_PAGE} | ({"after_id": after} if after else {})
        page, response = self._list_call(query)
        with self._mapped():
            records = page_of(page)
        last = id_of(page, "last_id") or (records[-1]["id"] if records else "")
        return ListPage(
            batches=[batch_of(record) for record in records],
            server_time=server_time(response.headers),
            cursor=last if page.get("has_more") else "",
        )

    def _list_call(self, query: dict[str, object]) -> tuple[dict[str, Any], httpx2.Response]:
        with self._mapped():
            response = self._client.get(
                BATCHES_PATH, cast_to=httpx2.Response, options={"params": query}
            )
            return self._record(response), response

    @contextmanager
    def _results(
        self, result: Mapping[str, Any], block_bytes: int = _BLOCK_BYTES
    ) -> Iterator[Iterator[bytes]]:
        """Stream an ended batch's results.

        Raises:
            ProviderError: Kind ``missing`` when they are archived, or are not there.
        """
        if id_of(result, "archived_at"):
            raise _missing("the results are archived: they are kept for 29 days")
        with self._mapped(), closing(self._stream(self._results_url(result))) as response:
            if response.headers.get("content-type", "").startswith("text/html"):
                raise UnusableAnswerError("HTTP 200 with a web page in place of the results")
            yield response.iter_bytes(block_bytes)

    def _stream(self, url: str) -> httpx2.Response:
        """Open a download; the SDK's own ``results`` would parse it."""
        from anthropic import Stream  # noqa: PLC0415 - loaded already: a client exists

        response = self._client.get(
            url,
            cast_to=httpx2.Response,
            options={"headers": {"accept": "application/binary"}},
            stream=True,
            stream_cls=Stream[object],
        )
        return cast("httpx2.Response", response)

    def _results_url(self, result: Mapping[str, Any]) -> str:
        """Return where results are: what the batch names only if it is the API's own origin.

        The key goes along, so that another host would learn it.
        """
        named = id_of(result, "results_url")
        if named and self._is_own(named):
            return named
        batch_id = id_of(result, "batch_id")
        if batch_id is None:
            raise _missing("the batch has no results")
        return f"{BATCHES_PATH}/{quote(batch_id, safe='')}/results"

    def _is_own(self, url: str) -> bool:
        try:
            named = httpx2.URL(url)
        except httpx2.InvalidURL:
            return False
        own = self._client.base_url
        return not named.userinfo and (
            (named.scheme, named.host, named.port) == (own.scheme, own.host, own.port)
        )

    def _is_proven(self, batch: ProviderBatch, chunk_token: str) -> bool:
        """Whether an ended batch's results have our custom ids.

        Raises:
            ProviderError: They say nothing, which proves nothing either.
        """
        result = batch.result or {}
        if id_of(result, "archived_at"):
            return False  # nobody can collect it any more
        try:
            with self._results(result, PROOF_BLOCK_BYTES) as blocks:
                proven = names_chunk(blocks, chunk_token)
        except ProviderError as exc:
            if exc.fault.kind is FaultKind.MISSING:
                raise _unproven(batch.batch_id) from exc
            raise
        if proven is None:
            raise _unproven(batch.batch_id)
        return proven


def _in_total(timeout_s: float) -> httpx2.Timeout:
    """Return time-outs of a call's phases that add up to ``timeout_s``: a lease depends on it."""
    phase_s = timeout_s / 6
    return httpx2.Timeout(timeout_s - 3 * phase_s, connect=phase_s, write=phase_s, pool=phase_s)


def _is_alike(batch: ProviderBatch, wanted: Wanted, oldest: datetime | None) -> bool:
    if is_older(batch, oldest):
        return False
    if wanted.until and batch.created_at and batch.created_at > wanted.until:
        return False
    return batch.counts is None or sum(batch.counts.values()) == wanted.request_count


def _age(batch: ProviderBatch) -> tuple[bool, str, str]:
    created = batch.created_at
    return created is None, created.isoformat() if created else "", batch.batch_id


def _missing(message: str) -> ProviderError:
    fault = Fault(
        kind=FaultKind.MISSING, owner=FaultOwner.PROVIDER, code="results_missing", message=message
    )
    return ProviderError(f"{fault.code}: {fault.message}", fault)


def _unproven(batch_id: str) -> ProviderError:
    fault = Fault(
        kind=FaultKind.TRANSIENT,
        owner=FaultOwner.PROVIDER,
        code="results_unreadable",
        message=f"batch {batch_id} may be ours, but its results cannot be read yet",
    )
    return ProviderError(f"{fault.code}: {fault.message}", fault)
