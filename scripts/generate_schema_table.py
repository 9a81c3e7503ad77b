"""Write the table of features in ``docs/structured-output.md`` from the code that it describes.

Run ``python scripts/generate_schema_table.py`` after a change to the schema compiler or the Arrow
mapper; a test fails while the page is out of date.
"""

import json
import sys
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, cast
from uuid import UUID

from pydantic import (
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    NaiveDatetime,
    RootModel,
    SecretStr,
    computed_field,
    create_model,
)
from typing_extensions import TypedDict

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


class Bush(BaseModel):
    """A recursive model whose recursion may be left out."""

    children: list["Bush"] = []


class Open(BaseModel):
    """A model that takes any further key."""

    model_config = ConfigDict(extra="allow")
    x: int


class Level(IntEnum):
    """An enum whose values are numbers."""

    LOW = 1
    HIGH = 2


class Loose(TypedDict):
    """A key that may be left out."""

    x: NotRequired[int]


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: str


@dataclass
class Point:
    """A dataclass."""

    x: float


class Computed(BaseModel):
    """A model that computes something."""

    f: int

    @computed_field
    @property
    def twice(self) -> int:
        """Not asked for and not stored."""
        return self.f * 2


class Encoded(BaseModel):
    """Bytes that are validated from base64."""

    model_config = ConfigDict(val_json_bytes="base64")
    f: bytes


def field(annotation: Any, default: Any = ...) -> type[BaseModel]:
    """A model with that field alone."""
    return create_model("Answer", f=(annotation, default))


FEATURES: list[tuple[str, type[BaseModel]]] = [
    ("str", field(str)),
    ("int", field(int)),
    ("float", field(float)),
    ("bool", field(bool)),
    ("int | None", field(int | None)),
    ("int | None = None", field(int | None, None)),
    ("int = 5", field(int, 5)),
    ('Field(description="how many")', field(int, Field(description="how many"))),
    ('Field(alias="F")', field(int, Field(alias="F"))),
    ("Field(ge=0, le=10)", field(int, Field(ge=0, le=10))),
    ("Field(gt=0, multiple_of=5)", field(int, Field(gt=0, multiple_of=5))),
    ("Field(min_length=1, max_length=9)", field(str, Field(min_length=1, max_length=9))),
    ('Field(pattern="^[A-Z]+$")', field(str, Field(pattern="^[A-Z]+$"))),
    ("datetime", field(datetime)),
    ("NaiveDatetime", field(NaiveDatetime)),
    ("date", field(date)),
    ("time", field(time)),
    ("timedelta", field(timedelta)),
    ("UUID", field(UUID)),
    ("AnyUrl", field(AnyUrl)),
    ("Decimal", field(Decimal)),
    (
        "Decimal, max_digits=10, decimal_places=2",
        field(Annotated[Decimal, Field(max_digits=10, decimal_places=2)]),
    ),
    ('Literal["a", "b"]', field(Literal["a", "b"])),
    ("Literal[1, 2]", field(Literal[1, 2])),
    ("Literal[True]", field(Literal[True])),
    ('Literal[1, "a"]', field(Literal[1, "a"])),
    ("Enum (text)", field(Colour)),
    ("IntEnum", field(Level)),
    ("nested model", field(Part)),
    ("nested model, described", field(Part, Field(description="the part"))),
    ("recursive model", field(Tree)),
    ("recursive model, recursion with a default", field(Bush)),
    ("dataclass", field(Point)),
    ("NamedTuple", field(Pair)),
    ("TypedDict, NotRequired", field(Loose)),
    ("list[int]", field(list[int])),
    ("list[int], min_length=2, max_length=3", field(list[int], Field(min_length=2, max_length=3))),
    ("set[str]", field(set[str])),
    ("tuple[float, float]", field(tuple[float, float])),
    ("tuple[int, str]", field(tuple[int, str])),
    ("dict[str, int]", field(dict[str, int])),
    ("dict[date, float]", field(dict[date, float])),
    ("int | float", field(int | float)),
    ("int | str", field(int | str)),
    ("tagged union of models", field(Cat | Dog, Field(discriminator="kind"))),
    ("dict[str, int] | list[int]", field(dict[str, int] | list[int])),
    ("RootModel[list[int]]", RootModel[list[int]]),
    ("RootModel[Part]", RootModel[Part]),
    ("computed_field", Computed),
    ('model with extra="allow"', field(Open)),
    ("Any, bare dict or list", field(Any)),
    ("bytes", field(bytes)),
    ('bytes, val_json_bytes="base64"', Encoded),
    ("Base64Bytes", field(Base64Bytes)),
    ("SecretStr", field(SecretStr)),
]

DIALECTS = {
    Dialect.OPENAI: "OpenAI",
    Dialect.ANTHROPIC: "Anthropic",
    Dialect.GEMINI: "Gemini `responseSchema`",
    Dialect.GEMINI_JSON_SCHEMA: "Gemini `responseJsonSchema`",
}


def table() -> str:
    """The table as Markdown."""
    lines = [
        f"| Pydantic | {' | '.join(DIALECTS.values())} | Arrow column |",
        "|---" * (len(DIALECTS) + 2) + "|",
    ]
    for feature, model in FEATURES:
        first, *others = [_asked(model, each) for each in DIALECTS]
        asked = [first, *("as OpenAI" if each == first else each for each in others)]
        lines.append(f"| {' | '.join([_code(feature), *asked, _arrow(model)])} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the present table between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _asked(model: type[BaseModel], dialect: Dialect) -> str:
    """Kept, said, rewritten or refused; what is sent; and the notes that it does not show."""
    try:
        compiled = compile_schema(model, dialect)
    except BatchorError as exc:
        return f"**refused**: {_cell(str(exc).removeprefix('f: '))}"
    (key, schema), *_ = cast("dict[str, Any]", compiled.schema["properties"]).items()
    sent = json.dumps(schema if key == "f" else {key: schema}, ensure_ascii=False)
    said = [note for note in compiled.notes if "moved into the description" in note.what]
    verdict = "rewritten" if compiled.needs_restore else "said" if said else "kept"
    notes = [
        note.what if note.path in ("", "f") else f"{note.path}: {note.what}"
        for note in compiled.notes
        if note not in said
    ]
    return "<br>".join([f"**{verdict}**: {_code(sent)}", *map(_cell, notes)])


def _arrow(model: type[BaseModel]) -> str:
    try:
        return _code(str(arrow_fields(model).field(0).type))
    except BatchorError as exc:
        return f"refused: {_cell(str(exc).removeprefix('Answer.f: '))}"


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
