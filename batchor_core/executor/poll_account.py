"""Polling everything that is in flight on one account, with as few calls as possible."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchor_core.clock import Clock
from batchor_core.errors import ProviderError
from batchor_core.executor.poll import (
    AccountFaultError,
    ask,
    record,
    refuse_account,
    result_of,
)
from batchor_core.model.faults import FaultKind
from batchor_core.model.records import SubmissionRecord
from batchor_core.providers.protocol import BatchPhase, BatchProvider, ProviderBatch
from batchor_core.store.protocol import Poll, Store

logger = logging.getLogger(__name__)

MOST_POLLS = 20_000
"""Submissions of one account that are looked at together."""

DUE_PER_LISTED = 50
"""The list is looked through where one of so many in flight is due: a page shows up to 100 batches,
and not all of them are ours."""

PAGES_IN_VAIN = 3
"""After so many pages without a batch that is looked for, the rest are asked for one by one; and
one more for each ``DUE_PER_LISTED`` that are still looked for."""

LONG_LOOK_S = 1.0
REST = 4.0
"""After a long look the account is left alone for so many times as long: polling 10,000 batches
shall take neither all of the account's calls nor all of a sensor's time."""

WALK_SHARE = 0.6
"""Of the time: the rest is for recording what the list has shown."""

_POLLS_PER_COMMIT = 500


@dataclass(frozen=True, kw_only=True)
class Walk:
    """A look through an account's list of batches that was cut off.

    Attributes:
        position: Of the next page, as the provider names it.
        since: When it began: what was due by then and is shown on no page is asked for by itself.
    """

    position: str
    since: datetime


class AccountPoll:
    """Polls what is in flight on an account, over all runs.

    Where little is due, it is asked for one by one. Where much is, the account's list is looked
    through, newest first, and whatever is in flight is recorded as it is shown, due or not, so
    that all becomes due together again. A look that runs out of time goes on with the same page
    the next time.

    Args:
        store: The control plane.
        provider: The account.
        clock: Now, and the deadline's clock.
        account: As stored with its runs: what is in flight is asked for also where organisation or
            project are set otherwise today, so that the adapter's text is another one.
        poll_s: Seconds until those that work on are due again, at least.
        deadline: Monotonic instant after which nothing further is asked.

    Attributes:
        ended: How many batches have ended by now.
        runs: Of what was due.
    """

    def __init__(
        self,
        store: Store,
        provider: BatchProvider,
        clock: Clock,
        *,
        account: str,
        poll_s: float,
        deadline: float,
    ) -> None:
        self._store = store
        self._account = account
        self._provider = provider
        self._clock = clock
        self._poll_s = poll_s
        self._deadline = deadline
        self._started = clock.monotonic()
        self._walk_until = self._started + WALK_SHARE * (deadline - self._started)
        self.ended = 0
        self.runs: set[str] = set()

    def run(self, walk: Walk | None) -> Walk | None:
        """Poll what is due.

        Args:
            walk: Where the last look was cut off; None if it was not.

        Returns:
            Where this one was.

        Raises:
            AccountFaultError: The provider refuses the account.
        """
        account, now = self._account, self._clock.now()
        due = self._store.due_polls(account, now, MOST_POLLS)
        self.runs = {submission.run_id for submission in due}
        try:
            if len(due) * DUE_PER_LISTED < self._store.count_polls(account) or len(due) == 1:
                self._ask(due)
                return None
            others = self._store.other_polls(account, now, MOST_POLLS)
            return self._look_through(due, others, walk or Walk(position="", since=now))
        except AccountFaultError:
            self._note([Poll(submission=submission) for submission in due])
            raise

    def _look_through(
        self, due: Sequence[SubmissionRecord], others: Sequence[SubmissionRecord], walk: Walk
    ) -> Walk | None:
        wanted = {s.provider_batch_id: s for s in (*others, *due) if s.provider_batch_id}
        missing = {s.provider_batch_id for s in due if _was_due(s, walk.since)}
        polls: list[Poll] = []
        position = walk.position
        try:
            for page, after in self._pages(walk.position, missing):
                position = after
                shown = [batch for batch in page if batch.batch_id in wanted]
                polls += [_poll_of(wanted.pop(batch.batch_id), batch) for batch in shown]
                missing.difference_update(batch.batch_id for batch in shown)
        except ProviderError as exc:
            refuse_account(exc)
            logger.warning("the list of batches cannot be read: %s", exc)
            is_outage = exc.fault.kind in (FaultKind.TRANSIENT, FaultKind.CAPACITY)
            if is_outage and not position:  # single calls would fail as well
                self._note([Poll(submission=submission) for submission in due])
                return None
            if not is_outage:  # there is no list, or it does not know the position any more
                position = ""
        if not self._note(polls):
            return walk  # what was not recorded is to be shown again
        if position and missing:
            return Walk(position=position, since=walk.since)
        self._ask([s for s in due if s.provider_batch_id in missing])
        return None

    def _pages(
        self, position: str, missing: Collection[str | None]
    ) -> Iterator[tuple[Sequence[ProviderBatch], str]]:
        """Yield pages, each with the position of the next, as long as it pays and there is time.

        The position with the last page is empty, unless the time is up or all is found.

        Args:
            position: Of the first page.
            missing: What is looked for; the caller takes out what it has found.
        """
        known = {position}
        in_vain = 0
        while self._clock.monotonic() < self._walk_until:
            page, after = self._provider.list_page(position)
            is_useful = any(batch.batch_id in missing for batch in page)
            in_vain = 0 if is_useful else in_vain + 1
            pays = in_vain <= PAGES_IN_VAIN + len(missing) // DUE_PER_LISTED
            position = after if pays and after not in known else ""
            yield page, position
            if not position or not missing:
                return
            known.add(position)

    def _ask(self, submissions: Sequence[SubmissionRecord]) -> None:
        """Ask for some batches one by one, those first that wait for longest."""
        for submission in submissions:
            if self._is_over:
                return
            seen = ask(self._provider, submission)
            self.ended += record(
                self._store, self._provider, self._clock, submission, seen, poll_s=self._poll_s
            )

    def _note(self, polls: Sequence[Poll]) -> bool:
        """Record what was seen, of that first which waits for longest; False if not all of it."""
        took_s = self._clock.monotonic() - self._started
        rest_s = REST * took_s if took_s >= LONG_LOOK_S else 0.0
        next_poll_at = self._clock.now() + timedelta(seconds=max(self._poll_s, rest_s))
        in_order = sorted(polls, key=lambda poll: poll.submission.next_poll_at or next_poll_at)
        for start in range(0, len(in_order), _POLLS_PER_COMMIT):
            if start and self._is_over:
                return False
            group = in_order[start : start + _POLLS_PER_COMMIT]
            self.ended += self._store.note_polls(group, next_poll_at)
        return True

    @property
    def _is_over(self) -> bool:
        return self._clock.monotonic() >= self._deadline


def _poll_of(submission: SubmissionRecord, batch: ProviderBatch) -> Poll:
    works = batch.phase is BatchPhase.WORKING
    result = None if works else result_of(batch)
    return Poll(submission=submission, status=batch.status, counts=batch.counts, result=result)


def _was_due(submission: SubmissionRecord, since: datetime) -> bool:
    return submission.next_poll_at is None or submission.next_poll_at <= since
