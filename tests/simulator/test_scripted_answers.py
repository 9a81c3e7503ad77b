"""Answers of one's own, as the real SDK sees them; every provider is tried in tests/dagster."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from batchor_core.simulator import Question
from batchor_core.simulator.draws import Draw
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.scripted_answers import AnswerScript, ScriptError, fields_for

SCHEMA = {
    "type": "object",
    "properties": {
        "category": {"type": "string", "enum": ["billing", "bug"]},
        "urgency": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["category", "urgency"],
    "additionalProperties": False,
}


class Weight(BaseModel):
    grams: int


def text_of(body: dict[str, Any]) -> str:
    """What the model says."""
    return str(body["output"][0]["content"][0]["text"])


def test_what_is_left_out_is_made_up(world: Any) -> None:
    """A test would have to spell out every field of an answer, or get one that is incomplete."""
    world.sim.answer({"category": "bug"}, containing="crash")
    structured = {"format": {"type": "json_schema", "name": "t", "strict": True, "schema": SCHEMA}}
    first, second = world.bodies("a crash", "hello", text=structured)
    answer = json.loads(text_of(first))
    assert answer["category"] == "bug"
    assert 1 <= answer["urgency"] <= 5
    assert json.loads(text_of(second)).keys() == {"category", "urgency"}


def test_tokens_are_those_of_the_scripted_answer(world: Any) -> None:
    """Costs and truncation would be those of an answer that nobody has got."""
    world.sim.answer("x" * 400)
    whole, cut = (
        world.bodies("hello", max_output_tokens=tokens)[0]["usage"]["output_tokens"]
        for tokens in (1_000, 16)
    )
    assert (whole, cut) == (100, 16)


def test_json_without_a_schema(world: Any) -> None:
    """A scripted object would come wrapped into the made-up one."""
    world.sim.answer({"free": True})
    (body,) = world.bodies("hello", text={"format": {"type": "json_object"}})
    assert json.loads(text_of(body)) == {"free": True}


def test_newest_goes_first_until_reset(world: Any) -> None:
    """A test could not make an exception from what its fixtures say, or leave nothing behind."""
    world.sim.answer("usual")
    world.sim.answer("special", containing="2")
    assert [text_of(body) for body in world.bodies("1", "2")] == ["usual", "special"]
    world.sim.reset()
    (body,) = world.bodies("1")
    assert "no model was involved" in text_of(body)


def test_functions_may_pass_the_question_on() -> None:
    """A function would have to answer everything, or see too little to decide."""
    script = AnswerScript()
    script.add(lambda question: f"{question.model} says hi", containing="")
    script.add(lambda question: Weight(grams=3) if "heavy" in question.prompt else None, "")
    assert script.reply_to(Question(prompt="how heavy", model="m")) == {"grams": 3}
    assert script.reply_to(Question(prompt="how far", model="m")) == "m says hi"


def test_fields_take_the_schemas_shape() -> None:
    """An answer in the shape of the user's model would be invalid for half of the providers."""
    schema = {
        "$defs": {
            "entry": {
                "properties": {"key": {"type": "string"}, "value": {"$ref": "#/$defs/pair"}},
            },
            "pair": {"properties": {"item_0": {"type": "integer"}, "item_1": {"type": "string"}}},
        },
        "properties": {
            "spans": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/entry"}},
                    {"type": "null"},
                ]
            },
            "plain": {"type": "array", "items": {"type": "integer"}},
            "weight": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        },
    }
    said = {"spans": {"a": (1, "x")}, "plain": [1, 2], "weight": Weight(grams=1)}
    assert fields_for(said, schema) == {
        "spans": [{"key": "a", "value": {"item_0": 1, "item_1": "x"}}],
        "plain": [1, 2],
        "weight": {"grams": 1},
    }
    assert fields_for({"spans": None}, schema) == {"spans": None}
    with pytest.raises(ScriptError, match="'wight'"):
        fields_for({"wight": 1}, schema)


def test_made_up_mappings_have_each_key_once() -> None:
    """A made-up answer would be an invalid one, and a test fail where nobody had asked for it."""
    entry = {"type": "object", "properties": {"key": {"enum": ["a"]}, "value": {"type": "null"}}}
    schema = {"type": "array", "items": {"$ref": "#/$defs/entry"}, "$defs": {"entry": entry}}
    make = compile_schema(schema)
    assert max(len(make(Draw(seed, "prompt"))) for seed in range(50)) == 1
