"""Faults of the list of batches. A kind orders the batches, or finishes a page of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from batchor_core.simulator.faults import FaultKind

T = TypeVar("T")


def _as_it_is(_: dict[str, Any], __: str | None) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ListKind(FaultKind):
    """Changes a list call.

    Attributes:
        is_oldest_first: Whether the batches come in order of creation.
        finish: Changes a page that was asked for with a cursor, or with none.
    """

    scope = "list"
    matches = frozenset({"route"})
    is_oldest_first: bool = False
    finish: Callable[[dict[str, Any], str | None], None] = _as_it_is

    def order(self, newest_first: list[T]) -> list[T]:
        """The batches in the order in which they are listed."""
        return newest_first[::-1] if self.is_oldest_first else newest_first


def _repeat_cursor(page: dict[str, Any], after: str | None) -> None:
    page["has_more"] = True
    page["last_id"] = after or page["last_id"]


LIST_KINDS = (
    ListKind(name="list_oldest_first", is_oldest_first=True),
    ListKind(name="repeat_cursor", finish=_repeat_cursor),
)
