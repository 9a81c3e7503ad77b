"""Walking through a list of batches, whose order Google does not promise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchor_core.errors import ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.providers.protocol import ProviderBatch, Sighting

PAGE_SIZE = 100
_MAX_PAGES = 100
"""How far back to look where nothing says when the upload was: 10,000 batches."""
_MAX_PAGES_TO_UPLOAD = 5_000
_CLOCK_SLACK = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """One page of a list of batches.

    Attributes:
        next_token: Of the next page; "" after the last one.
    """

    batches: Sequence[ProviderBatch]
    next_token: str
    server_time: datetime | None

    def reaches_back_to(self, oldest: datetime) -> bool:
        """Whether all that follows was created before ``oldest``.

        So it is if the page shows that the order is newest first: equal times show nothing.
        """
        times = [batch.created_at for batch in self.batches if batch.created_at]
        is_newest_first = times == sorted(times, reverse=True) and times[:1] > times[-1:]
        return is_newest_first and len(times) == len(self.batches) and times[-1] < oldest


class BatchList:
    """One account's list.

    Args:
        fetch: Returns the page of a token; "" stands for the first one.
    """

    def __init__(self, fetch: Callable[[str], ListPage]) -> None:
        self._fetch = fetch

    def those(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that a few pages show, where that is cheaper."""
        wanted = set(batch_ids)
        pages = 1 + len(wanted) // PAGE_SIZE
        found: dict[str, ProviderBatch] = {}
        if len(wanted) <= pages:
            return found
        for page, _ in self._pages(pages):
            found.update((b.batch_id, b) for b in page.batches if b.batch_id in wanted)
            if len(found) == len(wanted):
                break
        return found

    def find(self, is_ours: Callable[[ProviderBatch], bool], oldest: datetime | None) -> Sighting:
        """Look for batches that were not created before ``oldest``.

        A list that breaks off before that time proves nothing, unless what we look for has shown
        up in it.

        Raises:
            ProviderError: The list cannot be read, or breaks off.
        """
        oldest = oldest - _CLOCK_SLACK if oldest else None
        matches: dict[str, ProviderBatch] = {}
        server_time: datetime | None = None
        for page, breaks_off in self._pages(_MAX_PAGES_TO_UPLOAD if oldest else _MAX_PAGES):
            server_time = server_time or page.server_time
            matches.update((b.batch_id, b) for b in page.batches if is_ours(b))
            if oldest and page.reaches_back_to(oldest):
                break
            if oldest and breaks_off and not matches:
                raise _blind()
        return Sighting(matches=list(matches.values()), server_time=server_time)

    def down_to(self, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return all batches, as they are listed, down to ``since``.

        Raises:
            ProviderError: The list cannot be read, or breaks off.
        """
        for page, breaks_off in self._pages(_MAX_PAGES_TO_UPLOAD):
            yield from (b for b in page.batches if not _is_older(b, since))
            if since and page.reaches_back_to(since):
                return
            if breaks_off:
                raise _blind()

    def _pages(self, pages: int) -> Iterator[tuple[ListPage, bool]]:
        """Yield pages, and whether there is more that we do not get to see.

        That is so where the server repeats a token, or our own bound is reached.
        """
        token = ""
        seen: set[str] = set()
        for number in range(1, pages + 1):
            page = self._fetch(token)
            token = page.next_token
            breaks_off = bool(token) and (token in seen or number == pages)
            yield page, breaks_off
            if not token or breaks_off:
                return
            seen.add(token)


def _is_older(batch: ProviderBatch, since: datetime | None) -> bool:
    return bool(since and batch.created_at and batch.created_at < since)


def _blind() -> ProviderError:
    fault = Fault(
        kind=FaultKind.TRANSIENT,
        owner=FaultOwner.PROVIDER,
        code="list_incomplete",
        message="the list of batches breaks off before the time that was looked back to",
    )
    return ProviderError(f"{fault.code}: {fault.message}", fault)
