"""What one dialect of JSON Schema knows, as data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from batchor_core.planning.schema_compiler.nodes import ScalarType

NUMBER_BOUNDS = frozenset(
    {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"}
)
ARRAY_BOUNDS = frozenset({"minItems", "maxItems"})
_LOOK_AROUND_OR_BACK_REFERENCE = re.compile(r"\(\?<?[=!]|\(\?P=|\\[1-9]")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One dialect. What it does not know is rewritten, said in words, or refused.

    Attributes:
        keywords: The bounds that may be sent, by type; ``format`` and ``enum`` are apart.
        formats: The formats that may be sent, by type.
        enums: The types whose values may be listed; other choices are asked for as text.
        largest_min_items: The largest ``minItems`` that may be sent, None for any.
        tuples: ``alike`` where arrays of fixed length exist but positions have no types of their
            own; ``positions`` where they have; ``none`` where lengths are not enforced.
    """

    keywords: Mapping[str, frozenset[str]]
    formats: Mapping[str, frozenset[str]]
    enums: frozenset[ScalarType] = frozenset({"string", "integer", "number", "boolean"})
    largest_min_items: int | None = None
    tuples: Literal["alike", "positions", "none"] = "alike"

    def takes(self, kind: str, keyword: str, value: object) -> bool:
        """Whether a schema of that type may carry the keyword with that value."""
        if keyword == "format":
            return value in self.formats.get(kind, frozenset())
        if keyword not in self.keywords.get(kind, frozenset()):
            return False
        if keyword == "pattern":
            return not _LOOK_AROUND_OR_BACK_REFERENCE.search(str(value))
        if keyword == "minItems" and self.largest_min_items is not None:
            return isinstance(value, int) and value <= self.largest_min_items
        return True
