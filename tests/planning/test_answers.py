"""Answers in the dialect's shape come back as the user's model."""

import json
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from typing import Any, NamedTuple, NotRequired

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    ValidationError,
    computed_field,
    create_model,
)
from typing_extensions import TypedDict

from batchor_core.planning.schema_compiler import (
    AnswerValidator,
    Dialect,
    InvalidAnswer,
)
from tests.planning.dialect_grammars import conforms
from tests.planning.generated_models import (
    Cat,
    Dog,
    Node,
    Sub,
    compiled,
    encode,
    models_and_values,
)


class Pair(NamedTuple):
    left: int
    right: int


class Typed(TypedDict):
    a: int
    b: NotRequired[dict[str, int]]


@dataclass
class Point:
    x: float
    y: float = 0.0


class Tier(IntEnum):
    FREE = 0
    PAID = 1


class Mixed(Enum):
    ONE = 1
    TWO = "two"


def restored(model: type[BaseModel], answer: object) -> Any:
    """Validate an answer in the dialect's shape."""
    return AnswerValidator(model, compiled(model)).validate(json.dumps(answer))


@pytest.mark.parametrize("dialect", Dialect)
@settings(max_examples=100)
@given(data=st.data(), drawn=models_and_values)
def test_every_instance_survives_the_dialect(
    dialect: Dialect, data: st.DataObject, drawn: Any
) -> None:
    """If it failed, answers that a model allows could not be asked for, or come back changed."""
    model, values = drawn
    instance = data.draw(values)
    result = compiled(model, dialect)
    answer = encode(model, instance, dialect)
    assert conforms(result.schema, answer)
    assert AnswerValidator(model, result).validate(json.dumps(answer)) == instance


@settings(max_examples=50)
@given(st.data(), models_and_values)
def test_no_answer_crashes_the_validator(data: st.DataObject, drawn: Any) -> None:
    """If it failed, one malformed answer would stop a whole batch."""
    model, _ = drawn
    leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    names = st.sampled_from(["alpha", "beta", "key", "value", "item_0", "item_1", "kind"])
    answer = data.draw(
        st.recursive(leaf, lambda each: st.lists(each) | st.dictionaries(names, each))
    )
    AnswerValidator(model, compiled(model)).check(json.dumps(answer))


def test_lossless_rewritings_come_back() -> None:
    """If it failed, dicts, tuples and absent keys would not validate against the user's model."""

    class Answer(BaseModel):
        counts: dict[str, int]
        by_day: dict[date, list[dict[int, bool]]]
        mixed: tuple[int, str]
        named: Pair
        typed: Typed
        pet: Cat | Dog = Field(discriminator="kind")
        tiers: dict[Tier, int]

    answer = {
        "counts": [{"key": "a", "value": 1}],
        "by_day": [{"key": "2024-01-01", "value": [[{"key": 7, "value": True}]]}],
        "mixed": {"item_0": 1, "item_1": "b"},
        "named": {"left": 1, "right": 2},
        "typed": {"a": 1, "b": None},
        "pet": {"kind": "dog", "tricks": [{"key": "sit", "value": 3}]},
        "tiers": [{"key": 1, "value": 5}],
    }
    schema = compiled(Answer).schema
    assert conforms(schema, answer)
    assert restored(Answer, answer) == Answer(
        counts={"a": 1},
        by_day={date(2024, 1, 1): [{7: True}]},
        mixed=(1, "b"),
        named=Pair(1, 2),
        typed={"a": 1},
        pet=Dog(kind="dog", tricks={"sit": 3}),
        tiers={Tier.PAID: 5},
    )


def test_recursive_model_comes_back() -> None:
    """If it failed, a rewriting deep inside a recursive answer would not be reversed."""
    leaf = {"label": "b", "children": [], "scores": [{"key": "s", "value": 1.5}], "parent": None}
    tree = {"label": "a", "children": [leaf], "scores": [], "parent": leaf}
    node = restored(Node, tree)
    assert node.children[0].scores == {"s": 1.5} == node.parent.scores


@pytest.mark.parametrize(
    ("root", "answer", "expected"),
    [
        (list[int], [1, 2], [1, 2]),
        (dict[str, int], [{"key": "a", "value": 1}], {"a": 1}),
        (Cat | Dog, {"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
        (int, 3, 3),
    ],
)
def test_root_model_is_wrapped(root: Any, answer: object, expected: object) -> None:
    """If it failed, a model whose root is no object could not be used with OpenAI."""
    model: type[RootModel[Any]] = RootModel[root]
    assert restored(model, {"value": answer}).root == expected


def test_null_and_absent_are_told_apart_or_noted() -> None:
    """If it failed, a key that may be left out or null would change its meaning unsaid."""

    class Loose(TypedDict, total=False):
        a: int
        b: int | None

    model = create_model("Answer", f=(Loose, ...))
    assert restored(model, {"f": {"a": None, "b": None}}).f == {"b": None}
    assert [each.what for each in compiled(model).notes] == [
        "may be left out: asked for as null, which is left out again",
        "may be left out or null: both are answered as null",
    ]


def test_root_model_of_an_object_is_not_wrapped() -> None:
    """If it failed, a wrapper would be paid for where none is needed."""
    model = RootModel[Sub]
    assert not compiled(model).needs_restore
    assert restored(model, {"x": 1}).root == Sub(x=1)


def test_plain_models_skip_restoring() -> None:
    """If it failed, every answer would be parsed twice for nothing."""
    assert not compiled(Sub).needs_restore
    assert compiled(Sub).restore({"x": 1}) == {"x": 1}


def test_duplicate_keys_of_a_mapping_are_invalid() -> None:
    """If it failed, one of two values for a key would be lost silently."""
    model = create_model("Answer", f=(dict[str, int], ...))
    validator = AnswerValidator(model, compiled(model))
    twice = {"f": [{"key": "a", "value": 1}, {"key": "a", "value": 2}]}
    assert validator.check(json.dumps(twice)) == InvalidAnswer(
        message="answer: a key comes twice in 'f'"
    )


@pytest.mark.parametrize("text", ["", "nonsense", '```json\n{"x": 1}\n```', '{"x": "secret"}'])
def test_invalid_answers_are_values_and_are_not_quoted(text: str) -> None:
    """If it failed, an invalid answer would raise, or leak into an error message."""
    validator = AnswerValidator(Sub, compiled(Sub))
    result = validator.check(text)
    assert isinstance(result, InvalidAnswer)
    assert "secret" not in result.message
    with pytest.raises(ValidationError):
        validator.validate(text)


def test_aliases_are_what_is_asked_for() -> None:
    """If it failed, the answer's keys would not be those that the model validates."""

    class Aliased(BaseModel):
        first: int = Field(alias="First")
        second: int = Field(validation_alias=AliasChoices("2nd", "second"))

        @computed_field
        @property
        def both(self) -> int:
            return self.first + self.second

    properties: Any = compiled(Aliased).schema["properties"]
    assert list(properties) == ["First", "2nd"]
    assert restored(Aliased, {"First": 1, "2nd": 2}).both == 3


def test_other_records_and_encodings() -> None:
    """If it failed, dataclasses, base64 bytes, JSON text or mixed enums could not be asked for."""

    class Encoded(BaseModel):
        model_config = ConfigDict(val_json_bytes="base64")
        data: bytes
        point: Point
        inner: Json[list[int]]
        mixed: Mixed

    answer = {"data": "aGk=", "point": {"x": 1, "y": 2}, "inner": "[1]", "mixed": "two"}
    schema = compiled(Encoded).schema
    assert conforms(schema, answer)
    result = restored(Encoded, answer)
    assert (result.data, result.inner) == (b"hi", [1])
    assert result.point == Point(1, 2)
    assert result.mixed is Mixed.TWO
