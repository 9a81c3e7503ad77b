"""Answers that a test gives itself, where the made-up ones would say nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request, as whoever answers it sees it.

    Attributes:
        prompt: What the user says; the system prompt only where that is nothing.
        model: As the request names it.
    """

    prompt: str
    model: str


Said = str | Mapping[str, Any] | BaseModel
"""A text, or the fields of a structured answer."""

Reply = Said | Callable[[Question], Said | None]
"""An answer, or what makes one of a question; None leaves the question to others."""


class ScriptError(ValueError):
    """A scripted answer that no provider could give; the request is refused with its message."""


class AnswerScript:
    """The scripted answers that are in force; threads may share it."""

    def __init__(self) -> None:
        self._rules: tuple[tuple[str, Reply], ...] = ()

    def add(self, reply: Reply, containing: str) -> None:
        """Put an answer in force, before all earlier ones."""
        given: object = reply
        if not (isinstance(given, str | Mapping | BaseModel) or callable(given)):
            kind = type(given).__name__
            raise TypeError(f"a {kind} as answer: give a text, a mapping, a model or a function")
        self._rules = ((containing, reply), *self._rules)

    @property
    def is_empty(self) -> bool:
        """Whether no answer is in force."""
        return not self._rules

    def clear(self) -> None:
        """Put all answers out of force."""
        self._rules = ()

    def reply_to(self, question: Question) -> str | dict[str, Any] | None:
        """Return what the newest rule says that has an answer; None if none has.

        Raises:
            ScriptError: A function failed.
        """
        for containing, reply in self._rules:
            if containing in question.prompt and (said := _said(reply, question)) is not None:
                return said
        return None


def fields_for(said: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer in the shape that a schema asks for.

    The schema's own fields may be missing. Where it asks for a mapping as a list of keys and
    values, or for a tuple as an object, it gets that.

    Raises:
        ScriptError: A field is not in the schema.
    """
    names = schema.get("properties", said)
    unknown = [name for name in said if name not in names]
    if unknown:
        raise ScriptError(f"the scripted answer has {unknown}, the schema only {list(names)}")
    return {name: _shaped(said[name], names[name], schema) for name in said}


def _said(reply: Reply, question: Question) -> str | dict[str, Any] | None:
    if not isinstance(reply, str | Mapping | BaseModel):
        try:
            found = reply(question)
        except Exception as error:
            raise ScriptError(f"the scripted answer failed: {error!r}") from error
        return None if found is None else _said(found, question)
    if isinstance(reply, BaseModel):
        return reply.model_dump(mode="json", by_alias=True)
    return reply if isinstance(reply, str) else dict(reply)


def _shaped(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    schema = _resolved(schema, root)
    fields, items = schema.get("properties", {}), schema.get("items", {})
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        if "items" in schema:
            of_value = _resolved(items, root).get("properties", {}).get("value", {})
            return [{"key": k, "value": _shaped(v, of_value, root)} for k, v in value.items()]
        return {k: _shaped(v, fields.get(k, {}), root) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if "item_0" in fields:
            named = {f"item_{index}": item for index, item in enumerate(value)}
            return _shaped(named, schema, root)
        return [_shaped(item, items, root) for item in value]
    return value


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references, and the only option beside null."""
    while isinstance(schema, Mapping):
        if "$ref" in schema:
            schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2])
            continue
        options = schema.get("anyOf", [])
        solid = [option for option in options if option != {"type": "null"}]
        if len(solid) != 1:
            return schema
        schema = solid[0]
    return {}
