"""Write the table of features in ``docs/structured-output.md`` from the code that it describes.

Run ``python scripts/generate_schema_table.py`` after a change to the schema compiler or the Arrow
mapper; a test fails while the page is out of date.
"""

import json
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr, create_model

from batchor_core.errors import BatchorError
from batchor_core.planning.arrow_mapper import arrow_fields
from batchor_core.planning.schema_compiler import Dialect, compile_schema

PAGE = Path(__file__).parent.parent / "docs" / "structured-output.md"
BEGIN, END = "<!-- generated table: begin -->", "<!-- generated table: end -->"


class Colour(Enum):
    """An enum whose values are text."""

    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    """A nested model."""

    x: int


class Cat(BaseModel):
    """One variant of a tagged union."""

    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    """The other variant."""

    kind: Literal["dog"]
    tricks: list[str]


class Tree(BaseModel):
    """A recursive model."""

    children: list["Tree"]


class Open(BaseModel):
    """A model that takes any further key."""

    model_config = ConfigDict(extra="allow")
    x: int


FEATURES: list[tuple[str, Any, Any]] = [
    ("str", str, ...),
    ("int", int, ...),
    ("float", float, ...),
    ("bool", bool, ...),
    ("int | None", int | None, ...),
    ("int = 5", int, 5),
    ('Field(description="how many")', int, Field(description="how many")),
    ("Field(ge=0, le=10)", int, Field(ge=0, le=10)),
    ("Field(min_length=1, max_length=9)", str, Field(min_length=1, max_length=9)),
    ('Field(pattern="^[A-Z]+$")', str, Field(pattern="^[A-Z]+$")),
    ("datetime", datetime, ...),
    ("date", date, ...),
    ("time", time, ...),
    ("timedelta", timedelta, ...),
    ("UUID", UUID, ...),
    ("AnyUrl", AnyUrl, ...),
    ("Decimal", Decimal, ...),
    (
        "Decimal, max_digits=10, decimal_places=2",
        Annotated[Decimal, Field(max_digits=10, decimal_places=2)],
        ...,
    ),
    ('Literal["a", "b"]', Literal["a", "b"], ...),
    ("Literal[1, 2]", Literal[1, 2], ...),
    ('Literal[1, "a"]', Literal[1, "a"], ...),
    ("Enum (text)", Colour, ...),
    ("nested model", Part, ...),
    ("recursive model", Tree, ...),
    ("list[int]", list[int], ...),
    ("set[str]", set[str], ...),
    ("tuple[float, float]", tuple[float, float], ...),
    ("tuple[int, str]", tuple[int, str], ...),
    ("dict[str, int]", dict[str, int], ...),
    ("dict[date, float]", dict[date, float], ...),
    ("int | float", int | float, ...),
    ("int | str", int | str, ...),
    ("tagged union of models", Cat | Dog, Field(discriminator="kind")),
    ("dict[str, int] | list[int]", dict[str, int] | list[int], ...),
    ('model with extra="allow"', Open, ...),
    ("Any, bare dict or list", Any, ...),
    ("bytes", bytes, ...),
    ("SecretStr", SecretStr, ...),
]


def table() -> str:
    """The table as Markdown."""
    lines = ["| Pydantic | OpenAI strict schema | Arrow column |", "|---|---|---|"]
    for feature, annotation, default in FEATURES:
        model = create_model("Answer", f=(annotation, default))
        lines.append(f"| {_code(feature)} | {_openai(model)} | {_arrow(model)} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the present table between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _openai(model: type[BaseModel]) -> str:
    try:
        compiled = compile_schema(model, Dialect.OPENAI)
    except BatchorError as exc:
        return f"refused: {_cell(str(exc).removeprefix('f: '))}"
    properties: Any = compiled.schema["properties"]
    schema = _code(json.dumps(properties["f"], ensure_ascii=False))
    notes = [_cell(note.what) for note in compiled.notes if note.path == "f"]
    return "<br>".join([schema, *notes])


def _arrow(model: type[BaseModel]) -> str:
    try:
        return _code(str(arrow_fields(model).field("f").type))
    except BatchorError as exc:
        return f"refused: {_cell(str(exc).removeprefix('Answer.f: '))}"


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
