"""Walking through a provider's list of batches, bounded even if the server repeats itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchor_core.errors import ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.providers.protocol import ProviderBatch, Sighting

MAX_PAGES = 5_000
"""How many pages are read where it is known how far back to look."""
_MAX_PAGES_BLIND = 100
"""How many where nothing says: 10,000 batches, five hours at the highest rate at which OpenAI lets
an account create them."""
CLOCK_SLACK = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """One page of a list of batches.

    Attributes:
        cursor: Of the next page; "" after the last one.
        breaks_off: Whether there is more that we do not get to see: the server's cursor repeats,
            or the pages that we allow ourselves are used up.
    """

    batches: Sequence[ProviderBatch]
    server_time: datetime | None
    cursor: str = ""
    breaks_off: bool = False

    def reaches_back_to(self, oldest: datetime) -> bool:
        """Whether all that follows was created before ``oldest``.

        So it is if the page shows that the order is newest first, which some hosts' is not: equal
        times show nothing.
        """
        times = [batch.created_at for batch in self.batches if batch.created_at]
        is_newest_first = times == sorted(times, reverse=True) and times[:1] > times[-1:]
        return is_newest_first and len(times) == len(self.batches) and times[-1] < oldest


class BatchList:
    """One account's batches, newest first.

    Args:
        fetch: Returns the page behind a cursor; "" stands for the first one.
        page_size: How many batches are on a full page.
    """

    def __init__(self, fetch: Callable[[str], ListPage], page_size: int) -> None:
        self._fetch = fetch
        self._page_size = page_size

    def page(self, cursor: str) -> ListPage:
        """Return the page behind a cursor."""
        return self._fetch(cursor)

    def those(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these batches that a few pages show, where that is cheaper."""
        wanted = set(batch_ids)
        pages = 1 + len(wanted) // self._page_size
        found: dict[str, ProviderBatch] = {}
        if len(wanted) <= pages:
            return found
        for page in self.pages(pages):
            found.update((b.batch_id, b) for b in page.batches if b.batch_id in wanted)
            if len(found) == len(wanted):
                break
        return found

    def find(self, is_ours: Callable[[ProviderBatch], bool], oldest: datetime | None) -> Sighting:
        """Look for batches that were not created before ``oldest``, with some slack.

        A list that breaks off before that time proves nothing, unless what we look for has shown
        up in it. Where the time is unknown, the look is bounded.

        Raises:
            ProviderError: The list cannot be read, or breaks off.
        """
        oldest = oldest - CLOCK_SLACK if oldest else None
        matches: dict[str, ProviderBatch] = {}
        server_time: datetime | None = None
        for page in self.pages(MAX_PAGES if oldest else _MAX_PAGES_BLIND):
            server_time = server_time or page.server_time
            matches.update((b.batch_id, b) for b in page.batches if is_ours(b))
            if oldest and page.reaches_back_to(oldest):
                break
            if oldest and page.breaks_off and not matches:
                raise list_incomplete()
        return Sighting(matches=list(matches.values()), server_time=server_time)

    def down_to(self, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return the batches that are not older than ``since``.

        Raises:
            ProviderError: The list cannot be read, or breaks off before ``since``.
        """
        for page in self.pages(MAX_PAGES):
            yield from (batch for batch in page.batches if not is_older(batch, since))
            if since and page.reaches_back_to(since):
                return
            if page.breaks_off:
                raise list_incomplete()

    def pages(self, most: int) -> Iterator[ListPage]:
        """Yield pages, ``most`` at most."""
        cursor = ""
        seen: set[str] = set()
        for number in range(1, most + 1):
            page = self._fetch(cursor)
            cursor = page.cursor
            breaks_off = bool(cursor) and (cursor in seen or number == most)
            yield ListPage(
                batches=page.batches,
                server_time=page.server_time,
                cursor=cursor,
                breaks_off=breaks_off,
            )
            if not cursor or breaks_off:
                return
            seen.add(cursor)


def is_older(batch: ProviderBatch, since: datetime | None) -> bool:
    """Whether a batch was certainly created before ``since``."""
    return bool(since and batch.created_at and batch.created_at < since)


def list_incomplete() -> ProviderError:
    """Return the error of a list that does not go back as far as it should."""
    fault = Fault(
        kind=FaultKind.TRANSIENT,
        owner=FaultOwner.PROVIDER,
        code="list_incomplete",
        message="the list of batches breaks off before the time that was looked back to",
    )
    return ProviderError(f"{fault.code}: {fault.message}", fault)
