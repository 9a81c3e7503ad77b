"""The output model's fields as columns of the result table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pydantic import BaseModel, RootModel

from batchor_core.errors import ResultSchemaError
from batchor_core.planning.arrow_columns import Column, Getter
from batchor_core.planning.arrow_records import RecordField, record_fields
from batchor_core.planning.arrow_types import ROOT_COLUMN, arrow_field, column_for

_CANNOT_HOLD = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow and the converters raise for a value that a column's type cannot hold."""


@dataclass(frozen=True, kw_only=True)
class ConvertedAnswers:
    """Answers as columns.

    Attributes:
        columns: One array per field, all as long as the answers.
        invalid: Why an answer cannot be stored, by its position; its row is null in every column.
    """

    columns: list[pa.Array]
    invalid: dict[int, str]


class ModelColumns:
    """Turns instances of one output model into Arrow columns; build one per model and process.

    Safe to share between threads.

    Args:
        model: The user's output model.

    Attributes:
        schema: One nullable field per model field, with its description as metadata. It depends
            on the model alone.

    Raises:
        ResultSchemaError: If a field cannot be stored faithfully.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._columns: list[tuple[str, Column, Getter]] = []
        fields = []
        for each in _top_level_fields(model):
            column = _column(model, each)
            fields.append(arrow_field(each, column))
            self._columns.append((each.name, column, each.getter))
        self.schema: pa.Schema = pa.schema(fields)

    def columns(self, answers: Sequence[BaseModel | None]) -> list[pa.Array]:
        """Convert answers, None for a row without one; see `convert` for answers of doubt.

        Raises:
            ResultSchemaError: If a value does not fit its column, as an int beyond 64 bits.
        """
        converted = self.convert(answers)
        if converted.invalid:
            row, message = next(iter(converted.invalid.items()))
            raise ResultSchemaError(f"answer {row}: {message}")
        return converted.columns

    def convert(self, answers: Sequence[BaseModel | None]) -> ConvertedAnswers:
        """Convert answers, None for a row without one, setting aside what cannot be stored.

        A value that is valid for the model but not for its column (an int beyond 64 bits, a
        decimal with more places than the column, text with a lone surrogate) makes that answer
        invalid and no other.
        """
        try:
            return ConvertedAnswers(columns=self._build(answers), invalid={})
        except _CANNOT_HOLD:
            invalid = {
                row: message
                for row, answer in enumerate(answers)
                if answer is not None and (message := self.problem(answer))
            }
        storable = [None if row in invalid else answer for row, answer in enumerate(answers)]
        return ConvertedAnswers(columns=self._build(storable), invalid=invalid)

    def problem(self, answer: BaseModel) -> str | None:
        """Why the answer cannot be stored, or None; the message names the field, not the value."""
        for name, column, getter in self._columns:
            try:
                column.build([getter(answer)])
            except _CANNOT_HOLD:
                return f"{name}: the value does not fit the column type {column.type}"
        return None

    def _build(self, answers: Sequence[BaseModel | None]) -> list[pa.Array]:
        if None not in answers:
            return [column.build(list(map(get, answers))) for _, column, get in self._columns]
        return [
            column.build([None if answer is None else get(answer) for answer in answers])
            for _, column, get in self._columns
        ]


def arrow_fields(model: type[BaseModel]) -> pa.Schema:
    """The columns of an output model: the same whatever the answers are.

    Raises:
        ResultSchemaError: If a field cannot be stored faithfully.
    """
    return ModelColumns(model).schema


def to_arrow(
    answers: Sequence[BaseModel | Mapping[str, object] | None], model: type[BaseModel]
) -> pa.Table:
    """Turn answers into a table; mappings are validated by the model first.

    Raises:
        pydantic.ValidationError: If a mapping is not what the model declares.
        ResultSchemaError: If a value does not fit its column.
    """
    columns = ModelColumns(model)
    instances = [
        model.model_validate(each) if isinstance(each, Mapping) else each for each in answers
    ]
    return pa.Table.from_arrays(columns.columns(instances), schema=columns.schema)


def _top_level_fields(model: type[BaseModel]) -> list[RecordField]:
    if issubclass(model, RootModel):
        root = model.model_fields["root"]
        return [
            RecordField(
                name=ROOT_COLUMN,
                annotation=root.annotation,
                metadata=root.metadata,
                description=root.description,
                getter=lambda answer: answer.root,
            )
        ]
    return record_fields(model) or []


def _column(model: type[BaseModel], field: RecordField) -> Column:
    try:
        return column_for(field.annotation, field.metadata, (model,))
    except ResultSchemaError as exc:
        raise ResultSchemaError(f"{model.__name__}.{field.name}: {exc}") from exc
