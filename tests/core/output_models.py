"""Output models of every shape that a result row has to give back; importable by any process."""

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Line(BaseModel):
    price: Annotated[Decimal, Field(decimal_places=2, max_digits=8)]
    when: datetime
    tags: list[str]


class Ticket(BaseModel):
    """Nested records, lists, choices, optionals, exact numbers and instants."""

    subject: str
    mood: Mood
    lines: list[Line]
    note: str | None
    urgent: bool
    kind: Literal["bug", "wish"]
    day: date


class Aliased(BaseModel):
    """Names in JSON that are not the names in Python."""

    first: str = Field(alias="firstName")
    second: int = Field(validation_alias=AliasChoices("secondNumber", "second_number"))


class Scores(BaseModel):
    """Mappings, of values and of records."""

    scores: dict[str, int]
    lines: dict[str, Line]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Owner(BaseModel):
    """Unions: of records, and of what has no common column."""

    pet: Cat | Dog
    number: int | str
    either: list[int] | str
    pair: tuple[str, int]


class Node(BaseModel):
    """A record that holds itself."""

    name: str
    children: list["Node"]


class Reasoned(BaseModel):
    """A chain of thought that is asked for and not stored."""

    thoughts: str = Field(exclude=True)
    answer: int


class Words(RootModel[list[str]]):
    """A list by itself."""


class Identified(BaseModel):
    """Values that are stored as text."""

    key: UUID
    anything: Any


class Strict(BaseModel):
    """A model that takes no other type for the one it names."""

    model_config = ConfigDict(strict=True)

    count: int
    when: datetime
    mood: Mood
    items: tuple[int, ...]


WHEN = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LINE = Line(price=Decimal("12.30"), when=WHEN, tags=["a", "b"])
EXAMPLES: list[BaseModel] = [
    Ticket(
        subject="s",
        mood=Mood.BAD,
        lines=[LINE, LINE],
        note=None,
        urgent=True,
        kind="wish",
        day=date(2025, 1, 2),
    ),
    Ticket(
        subject="", mood=Mood.GOOD, lines=[], note="n", urgent=False, kind="bug", day=WHEN.date()
    ),
    Aliased.model_validate({"firstName": "x", "secondNumber": 3}),
    Scores(scores={"a": 1, "b": 2}, lines={"x": LINE}),
    Scores(scores={}, lines={}),
    Owner(pet=Cat(kind="cat", lives=9), number=1, either=[1, 2], pair=("a", 1)),
    Owner(pet=Dog(kind="dog", tricks=["sit"]), number="1", either="x", pair=("", 0)),
    Node(name="root", children=[Node(name="leaf", children=[])]),
    Words(["a", "b"]),
    Identified(key=UUID(int=7), anything={"a": [1, None]}),
    Strict(count=1, when=WHEN, mood=Mood.BAD, items=(1, 2)),
]
