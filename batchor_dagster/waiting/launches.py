"""Launches: the assets and partitions of a waiter that one Dagster run materializes."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchor_core.integration import Waiter
from batchor_dagster.waiting.launch_spec import LaunchSpec

MAX_ATTEMPTS = 3
"""How many Dagster runs a launch gets while they fail for another reason than a verdict."""


class LaunchState(StrEnum):
    """The state of a launch. Stored."""

    OPEN = "open"
    MATERIALIZED = "materialized"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Assets and partitions of a waiter that one Dagster run materializes.

    The partitions of a launch follow each other: a Dagster run takes a range, and either
    materializes all of it or fails. A Dagster run that fails is followed by another attempt.

    Attributes:
        index: The launch's number among those of the waiter; never changed.
        assets: Names, upstream assets first.
        partitions: Empty for unpartitioned assets.
        attempt: The number of the current Dagster run, from 0.
        state: ``open`` until the launch has ended.
        reason: Why it failed or was cancelled.
        is_verdict: Whether it failed because of the answers, so that another attempt with the same
            answers would fail again.
        done: The assets that earlier attempts have materialized.
        given_up: The assets that no attempt will materialize.
        asked: The downstream batch assets that it has requested: they have waiters of their own.
    """

    index: int
    assets: tuple[str, ...]
    partitions: tuple[str, ...]
    attempt: int = 0
    state: LaunchState = LaunchState.OPEN
    reason: str | None = None
    is_verdict: bool = False
    done: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the launch has not ended."""
        return self.state is LaunchState.OPEN

    @property
    def left(self) -> tuple[str, ...]:
        """The assets that the current attempt materializes."""
        over = {*self.done, *self.given_up, *self.asked}
        return tuple(name for name in self.assets if name not in over)

    def run_key(self, waiter: Waiter) -> str:
        """Return the run key of the current attempt. A key that was used is never used again."""
        # Each time the store takes partitions away, the launches are made anew.
        shrunk = waiter.progress.get("shrunk", 0)
        version = f":{shrunk}" if shrunk else ""
        return f"batchor:{waiter.run_id}:{waiter.waiter_id}:{self.index}:{self.attempt}{version}"

    def ended(self, state: LaunchState, reason: str | None = None) -> "Launch":
        """Return the ended launch; a reason that it has already stays."""
        return dataclasses.replace(self, state=state, reason=self.reason or reason)

    def judged(self, reason: str) -> "Launch":
        """Return the launch after it has failed with a verdict."""
        return dataclasses.replace(self, is_verdict=True).ended(LaunchState.FAILED, reason)


def launches_of(waiter: Waiter, spec: LaunchSpec) -> list[Launch]:
    """Return a waiter's launches; before any is stored, one launch with all partitions."""
    stored: Sequence[Mapping[str, Any]] | None = waiter.progress.get("launches")
    if stored is None:
        return [Launch(index=0, assets=spec.own, partitions=waiter.partitions)]
    return [_launch(index, values, waiter, spec) for index, values in enumerate(stored)]


def with_launches(waiter: Waiter, spec: LaunchSpec, launches: Iterable[Launch]) -> dict[str, Any]:
    """Return a waiter's progress with some launches replaced or added."""
    known = waiter.progress.get("launches")
    stored = dict(enumerate([None] if known is None else known))
    all_of_them = [*launches] if known is not None else [*launches_of(waiter, spec), *launches]
    places = {key: place for place, key in enumerate(waiter.partitions)}
    for launch in all_of_them:  # of thousands, the others are left as they are
        stored[launch.index] = _stored(launch, waiter, spec, places)
    return {**waiter.progress, "launches": list(stored.values())}


def with_verdict(waiter: Waiter, reason: str) -> dict[str, Any]:
    """Return a waiter's progress after a verdict that fails all of its partitions."""
    spec = LaunchSpec.of_waiter(waiter)
    return with_launches(waiter, spec, [one.judged(reason) for one in launches_of(waiter, spec)])


def cut(
    launch: Launch,
    first_free: int,
    kind: Callable[[str], object],
    follows: Callable[[str, str], bool],
) -> list[Launch]:
    """Split a launch where its partitions do not follow each other, or differ in kind.

    Args:
        launch: A launch whose current attempt was not launched yet.
        first_free: The index of the first new launch.
        kind: Returns what all partitions of one launch have to have in common.
        follows: Whether the second partition comes right after the first one.

    Returns:
        The launch with its first partitions, then the new launches.
    """
    if len(launch.partitions) < 2:
        return [launch]
    pieces: list[list[str]] = []
    for key in launch.partitions:
        last = pieces[-1][-1] if pieces else None
        if last is not None and kind(last) == kind(key) and follows(last, key):
            pieces[-1].append(key)
        else:
            pieces.append([key])
    indexes = [launch.index, *range(first_free, first_free + len(pieces) - 1)]
    return [
        dataclasses.replace(launch, index=index, partitions=tuple(piece))
        for index, piece in zip(indexes, pieces, strict=True)
    ]


def _launch(index: int, stored: Mapping[str, Any], waiter: Waiter, spec: LaunchSpec) -> Launch:
    start, end = stored.get("span", (0, 0))
    return Launch(
        index=index,
        assets=tuple(stored.get("assets", spec.own)),
        partitions=tuple(stored.get("partitions", waiter.partitions[start:end])),
        attempt=stored["attempt"],
        state=LaunchState(stored["state"]),
        reason=stored["reason"],
        is_verdict=stored["is_verdict"],
        done=tuple(stored["done"]),
        given_up=tuple(stored["given_up"]),
        asked=tuple(stored.get("asked", ())),
    )


def _stored(
    launch: Launch, waiter: Waiter, spec: LaunchSpec, places: Mapping[str, int]
) -> dict[str, Any]:
    """Return the JSON of a launch: of thousands of partitions, only the first and the last."""
    values: dict[str, Any] = {
        "attempt": launch.attempt,
        "state": launch.state.value,
        "reason": launch.reason,
        "is_verdict": launch.is_verdict,
        "done": list(launch.done),
        "given_up": list(launch.given_up),
    }
    if launch.asked:
        values["asked"] = list(launch.asked)
    if launch.assets != spec.own:
        values["assets"] = list(launch.assets)
    span = _span(launch.partitions, waiter.partitions, places)
    return values | ({"partitions": list(launch.partitions)} if span is None else {"span": span})


def _span(
    part: Sequence[str], whole: Sequence[str], places: Mapping[str, int]
) -> tuple[int, int] | None:
    if not part:
        return None if whole else (0, 0)
    start = places.get(part[0])
    if start is None or whole[start : start + len(part)] != part:
        return None
    return start, start + len(part)
