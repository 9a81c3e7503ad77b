"""The contract between the executor and a provider's adapter.

An adapter does one call per method, without retries of its own and with the SDK's switched off;
it maps every failure to ``ProviderError`` with a ``Fault`` and trusts no answer for its shape.
It keeps no state but its connections, and is safe to use from several threads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from batchor_core.ids import parse_submission_key
from batchor_core.model.faults import Fault, ItemFault
from batchor_core.model.items import PromptParts
from batchor_core.model.limits import ProviderLimits
from batchor_core.model.records import SubmissionRecord
from batchor_core.planning.schema_compiler import CompiledSchema, Dialect


class BatchPhase(StrEnum):
    """A provider batch's status, in our words."""

    WORKING = "working"
    ENDED = "ended"
    """It has results, perhaps partial ones (completed, expired, cancelled)."""
    REJECTED = "rejected"
    """The provider refused it as a whole: nothing ran, nothing is billed."""


@dataclass(frozen=True, kw_only=True)
class ProviderBatch:
    """What a provider says of a batch, normalised.

    Attributes:
        batch_id: The provider's id.
        phase: Its status in our words.
        status: Its status in the provider's words.
        key: The key that we gave it, where the provider keeps one.
        upload_ref: The id of the request file it was made from, where the provider says so.
        created_at: By the provider's clock.
        counts: Its own request counts; shown, never trusted.
        executed: How many requests it says it has executed; None where it does not say. What was
            executed and has no result line yet is waited for: it is never sent again unseen.
        result: What ``download_results`` needs: stored with the submission when it ended.
        fault: Why it was rejected; None in other phases.
        line_faults: For a rejected batch: 1-based line numbers of the request file and why.
        is_partial: Whether it ended before all was executed (expired, cancelled): an item that
            its results do not name was not executed then, and costs nothing, unless ``executed``
            counts it.
    """

    batch_id: str
    phase: BatchPhase
    status: str
    key: str | None = None
    upload_ref: str | None = None
    created_at: datetime | None = None
    counts: Mapping[str, int] | None = None
    executed: int | None = None
    result: Mapping[str, Any] | None = None
    fault: Fault | None = None
    line_faults: Mapping[int, ItemFault] | None = None
    is_partial: bool = False


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A request file at the provider.

    Attributes:
        ref: Its id; None where the provider takes requests in the create call itself.
        server_time: The provider's clock (``Date`` header) when it answered.
    """

    ref: str | None
    server_time: datetime | None


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What looking for an unacknowledged batch found.

    Attributes:
        matches: Batches that are certainly the submission's: they carry its upload or key, or
            their results its custom ids; more than one are twins.
        candidates: Of a provider that keeps no key: batches of the right time and size that may
            be the submission's, oldest first. They are still at work, so that nothing proves it.
        server_time: The provider's clock (``Date`` header) when the look began.
    """

    matches: Sequence[ProviderBatch]
    server_time: datetime | None
    candidates: Sequence[ProviderBatch] = ()


_LEAST_WINDOW = timedelta(hours=1)
"""After a submission was intended its batch may be created for so long at least, to be sure."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The submission whose batch is looked for.

    Attributes:
        key: What its create call carried, where the provider keeps one.
        upload_ref: Its request file; None where there is none.
        chunk_token: What its custom ids begin with.
        request_count: How many requests it has.
        since: An instant of the provider's own clock before which it cannot have been created;
            None where nothing tells.
        until: An instant of the same clock after which it cannot have been created; None where
            nothing tells.
    """

    key: str
    upload_ref: str | None
    chunk_token: str
    request_count: int
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(cls, submission: SubmissionRecord) -> "Wanted":
        """Return what is known of a submission that may have a batch."""
        key = parse_submission_key(submission.key)
        since, last = submission.create_server_time, submission.create_allowed_until
        until = None
        if since is not None and last is not None:
            # A duration by our clock, which may have jumped: never less than the least.
            until = since + max(last - submission.intended_at, _LEAST_WINDOW)
        return cls(
            key=submission.key,
            upload_ref=submission.upload_ref,
            chunk_token=key.chunk_token if key else "",
            request_count=submission.reserved_requests,
            since=since,
            until=until,
        )


@dataclass(frozen=True, kw_only=True)
class RawPart:
    """One downloaded result file, as it came.

    Attributes:
        kind: ``output`` or ``errors``.
        path: A local file of JSON lines.
    """

    kind: str
    path: Path


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """One result line, decoded.

    Attributes:
        custom_id: As the provider returned it.
        text: The answer's text; None where there is none.
        fault: Why the answer is not usable; None for a complete answer.
        finish_reason: The provider's word for why the answer ended.
        vectors: For embeddings: one vector for each input of the request, in their order, as
            little-endian float32.
        input_tokens: All input tokens, cached ones and those written to a cache included.
        cache_write_tokens: Those of them that were written to a cache, which has its own price.
    """

    custom_id: str
    text: str | None = None
    vectors: list[bytes] | None = None
    fault: ItemFault | None = None
    finish_reason: str | None = None
    model: str | None = None
    request_id: str | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


class RequestEncoder(Protocol):
    """Turns prompts into request lines; made once per run, for one model and output schema.

    Where one request takes many inputs (embeddings), ``encode`` returns a *piece* in place of a
    body, and ``line`` takes pieces joined by commas.
    """

    @property
    def inputs_per_request(self) -> int:
        """How many items one request holds at most; 1 but for embeddings."""
        ...

    def encode(self, prompt: str | PromptParts) -> tuple[bytes, bytes]:
        """Return (request key: 16 bytes, canonical body: JSON on one line) of a prompt.

        The key is blake2b-128 over provider, host, endpoint and the canonical body. A plain text
        is the fast path: the user's message, with the job's own system prompt.

        Raises:
            ValueError: It cannot be sent: a lone surrogate, a picture that cannot be read, a
                parameter that is ours to decide, a part that this endpoint does not take.
        """
        ...

    def line(self, custom_id: str, body: bytes) -> bytes:
        r"""Return the request file's line for a body, ending in ``\n``."""
        ...

    def relabel(self, line: bytes, token: str) -> bytes:
        """Return a sealed line with its custom id moved to the chunk of ``token``."""
        ...

    def body_offset(self, custom_id: str) -> int:
        """Return where in a line its body (or the first of its pieces) begins."""
        ...


def no_progress() -> None:
    """Do nothing: nobody wants to know how a transfer goes."""


class BatchProvider(Protocol):
    """One account of one provider."""

    @property
    def name(self) -> str:
        """``openai``, ``anthropic`` or ``gemini``; stored."""
        ...

    @property
    def host(self) -> str:
        """The host that requests go to; part of every request key."""
        ...

    @property
    def account(self) -> str:
        """A stable text for who pays: provider, host, and what tells accounts apart, but no key."""
        ...

    @property
    def credential(self) -> str:
        """A stable text for what one gets in with, without revealing it.

        The same one is certainly of the same account; another one may be.
        """
        ...

    @property
    def scope(self) -> str:
        """The queue that this account's runs of this model share."""
        ...

    @property
    def limits(self) -> ProviderLimits:
        """The bounds on one batch."""
        ...

    @property
    def is_keyless(self) -> bool:
        """Whether its batches carry nothing of ours, so that one is only known by its results.

        Creates of such an account are serialised while one is unsettled.
        """
        ...

    @property
    def dialect(self) -> Dialect:
        """How it wants output schemas."""
        ...

    def encoder(
        self, *, system_prompt: str | None, schema: CompiledSchema | None
    ) -> RequestEncoder:
        """Return what turns the prompts of one run into request lines.

        Args:
            system_prompt: The job's own instructions.
            schema: The compiled output model; None for text and embeddings.

        Raises:
            ConfigurationError: This endpoint cannot do that.
        """
        ...

    def upload(self, path: Path, *, key: str, progress: Callable[[], None] = no_progress) -> Upload:
        """Send a request file, named after ``key``; where there is none, learn the provider's time.

        ``progress`` is called now and then during the transfer.

        Raises:
            ProviderError: It failed; uploading again is always safe.
        """
        ...

    def create(
        self,
        *,
        upload_ref: str | None,
        path: Path,
        key: str,
        tags: Mapping[str, str],
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a batch. Exactly one HTTP request, whatever happens.

        Raises:
            ProviderError: With kind ``unknown_outcome`` whenever it may have taken effect.
        """
        ...

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one batch.

        Raises:
            ProviderError: With kind ``missing`` for a 404.
        """
        ...

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that a few list calls show, where that is cheaper.

        Absence means nothing: ask ``get`` for the rest.
        """
        ...

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """Return one page of the account's batches, and the position of the next one.

        Newest first. ``""`` is the position of the first page, and what comes with the last; a
        position may be kept, but the provider may not know it any more.

        Raises:
            ProviderError: The page cannot be read.
        """
        ...

    def find(self, wanted: Wanted) -> Sighting:
        """Look for the batches of one submission.

        Looks back to ``wanted.since``, and is bounded where that is unknown.

        Raises:
            ProviderError: The look failed: it proves nothing.
        """
        ...

    def list_batches(self, *, since: datetime | None) -> Iterable[ProviderBatch]:
        """Return the account's batches, newest first, down to ``since`` by the provider's clock.

        Bounded even if the server repeats itself.

        Raises:
            ProviderError: The list cannot be read, or breaks off before ``since``.
        """
        ...

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel. Cancelling what has ended already is no error."""
        ...

    def download_results(
        self,
        result: Mapping[str, Any],
        folder: Path,
        progress: Callable[[], None],
        *,
        leave_out_missing: bool = False,
    ) -> list[RawPart]:
        """Download an ended batch's result files into ``folder``.

        ``progress`` is called now and then during the transfer. With ``leave_out_missing`` files
        that do not exist any more are left out.

        Raises:
            ProviderError: Kind ``missing`` when the results are gone; else it may be repeated.
        """
        ...

    def decode(self, part: RawPart, line: bytes) -> Answer | None:
        """Decode one result line; None for a line that cannot be read or has no custom id."""
        ...

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:
        """Remove our files at the provider; what is gone already is no error."""
        ...

    def close(self) -> None:
        """Give back connections. Idempotent."""
        ...
