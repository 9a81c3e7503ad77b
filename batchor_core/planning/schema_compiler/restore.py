"""Reversing the rewritings: from an answer in a dialect's shape to the model's own shape.

A restorer is built once from the schema and then called per answer; None stands for "as it is",
so that whole subtrees without a rewriting cost nothing. Restorers never reject a wrong shape:
they pass it on for the user's model to reject.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from batchor_core.planning.schema_compiler.nodes import JsonObject, ScalarValue
from batchor_core.planning.schema_compiler.shapes import fits

Restorer: TypeAlias = Callable[[object], object]

KEY, VALUE = "key", "value"
"""The keys of one entry of a mapping, and `VALUE` also of a wrapped root."""


class UnrestorableAnswerError(ValueError):
    """The answer has no counterpart in the model's shape. The message names no value."""


def position_key(index: int) -> str:
    """The key under which a tuple's position is asked for."""
    return f"item_{index}"


def restore_record(parts: Mapping[str, Restorer], absent_when_null: frozenset[str]) -> Restorer:
    """Restore some keys of an object and leave out those whose null means "absent"."""

    def restore(answer: object) -> object:
        if not isinstance(answer, dict):
            return answer
        return {
            key: parts[key](value) if key in parts else value
            for key, value in answer.items()
            if not (value is None and key in absent_when_null)
        }

    return restore


def restore_list(item: Restorer) -> Restorer:
    """Restore each element of an array."""

    def restore(answer: object) -> object:
        return [item(each) for each in answer] if isinstance(answer, list) else answer

    return restore


def restore_positions(positions: Sequence[Restorer | None]) -> Restorer:
    """Restore the elements of an array of fixed length, each in its own way."""

    def restore(answer: object) -> object:
        if not isinstance(answer, list) or len(answer) != len(positions):
            return answer
        return [
            each if position is None else position(each)
            for each, position in zip(answer, positions, strict=True)
        ]

    return restore


def restore_choice(values: Mapping[str, ScalarValue]) -> Restorer:
    """Turn the text that stands for a value back into the value."""

    def restore(answer: object) -> object:
        return values.get(answer, answer) if isinstance(answer, str) else answer

    return restore


def restore_entries(value: Restorer | None, path: str) -> Restorer:
    """Turn a list of ``{"key": …, "value": …}`` back into an object.

    The restorer raises `UnrestorableAnswerError` for a key that comes twice: taking either value
    would lose the other.
    """

    def restore(answer: object) -> object:
        if not isinstance(answer, list) or not all(map(_is_entry, answer)):
            return answer
        restored: JsonObject = {}
        for entry in answer:
            key = entry[KEY]
            text = key if isinstance(key, str) else json.dumps(key)
            if text in restored:
                raise UnrestorableAnswerError(f"a key comes twice in {path!r}")
            restored[text] = entry[VALUE] if value is None else value(entry[VALUE])
        return restored

    return restore


def restore_tuple(positions: Sequence[Restorer | None]) -> Restorer:
    """Turn ``{"item_0": …, "item_1": …}`` back into an array."""
    keys = [position_key(index) for index in range(len(positions))]

    def restore(answer: object) -> object:
        if not isinstance(answer, dict) or answer.keys() != set(keys):
            return answer
        return [
            answer[key] if position is None else position(answer[key])
            for key, position in zip(keys, positions, strict=True)
        ]

    return restore


def restore_union(
    variants: Sequence[tuple[JsonObject, Restorer | None]], definitions: Mapping[str, JsonObject]
) -> Restorer:
    """Restore by the variant that the answer fits; at most one does, the caller has made sure."""

    def restore(answer: object) -> object:
        for schema, restorer in variants:
            if fits(schema, answer, definitions):
                return answer if restorer is None else restorer(answer)
        return answer

    return restore


def restore_reference(name: str, definitions: Mapping[str, Restorer | None]) -> Restorer:
    """Restore by a definition that may not have been built yet."""

    def restore(answer: object) -> object:
        restorer = definitions[name]
        return answer if restorer is None else restorer(answer)

    return restore


def restore_wrapped(root: Restorer | None) -> Restorer:
    """Take a root that is no object out of its wrapper."""

    def restore(answer: object) -> object:
        if not isinstance(answer, dict) or answer.keys() != {VALUE}:
            return answer
        return answer[VALUE] if root is None else root(answer[VALUE])

    return restore


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and entry.keys() == {KEY, VALUE}
