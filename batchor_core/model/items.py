"""What a user hands in, row by row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BatchItem:
    """One input row.

    Attributes:
        item_id: The user's key, unique in the run.
        payload: What the prompt is built from: the prompt itself, or a mapping of columns.
        metadata: JSON values that are handed back with the result.
    """

    item_id: str
    payload: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """What the model is asked for one item.

    Attributes:
        prompt: The user's message.
        system_prompt: Instructions that precede it; None for none.
    """

    prompt: str
    system_prompt: str | None = None
