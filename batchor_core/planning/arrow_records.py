"""The fields of models, dataclasses, typed dicts and named tuples, in one form."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import get_type_hints, is_typeddict

from batchor_core.planning.arrow_columns import Getter


@dataclass(frozen=True, kw_only=True)
class RecordField:
    """One field of a record.

    Attributes:
        name: Its Python name, which becomes the column's name; aliases are for the JSON only.
        annotation: Its type.
        metadata: What `Annotated` or `Field` said about the type.
        description: For the Arrow field's metadata.
        getter: Reads it from an instance.
    """

    name: str
    annotation: Any
    getter: Getter
    metadata: Sequence[object] = ()
    description: str | None = None


def record_fields(annotation: Any) -> list[RecordField] | None:
    """The fields in their order, or None if the annotation is no record.

    Fields with ``exclude=True`` are left out, as Pydantic leaves them out of every dump: that is
    how to ask for a field, such as a chain of thought, without storing it. Computed fields are
    left out too: they can be computed again.
    """
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    if issubclass(cls, BaseModel):
        return _from_pydantic(cls.model_fields)
    if dataclasses.is_dataclass(cls):
        declared: Mapping[str, FieldInfo] | None = getattr(cls, "__pydantic_fields__", None)
        return _from_hints(cls, attrgetter) if declared is None else _from_pydantic(declared)
    if is_typeddict(cls):
        return _from_hints(cls, _key)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _from_hints(cls, attrgetter)
    return None


def _from_pydantic(fields: Mapping[str, FieldInfo]) -> list[RecordField]:
    return [
        RecordField(
            name=name,
            annotation=info.annotation,
            metadata=info.metadata,
            description=info.description,
            getter=attrgetter(name),
        )
        for name, info in fields.items()
        if info.exclude is not True
    ]


def _from_hints(cls: type, getter: Callable[[str], Getter]) -> list[RecordField]:
    hints = get_type_hints(cls, include_extras=True)
    return [
        RecordField(name=name, annotation=hint, getter=getter(name)) for name, hint in hints.items()
    ]


def _key(name: str) -> Getter:
    return lambda record: record.get(name)
