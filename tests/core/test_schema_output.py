"""A JSON Schema in place of a model: for tables whose shape is data."""

import copy
from typing import Any

import polars as pl
import pytest

from batchor_core import ConfigurationError, FingerprintMismatchError
from tests.core.world import World, check_conserved, statuses

SCHEMA: dict[str, Any] = {
    "title": "Verdict",
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "score": {"type": "integer", "minimum": 0, "maximum": 9},
        "label": {"enum": ["good", "bad"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["reasoning", "score", "label", "tags", "due"],
    "additionalProperties": False,
}


def test_answers_become_columns(world: World) -> None:
    """Whoever has a schema would have to write a model first."""
    run = world.run(6, structured_output=SCHEMA)
    frame = run.results_frame().collect()
    assert frame.columns[1:6] == list(SCHEMA["properties"])
    assert frame.schema["score"] == pl.Int64
    assert frame.schema["due"] == pl.Date
    assert frame["score"].is_between(0, 9).all()
    assert set(frame["label"]) <= {"good", "bad"}
    check_conserved(run, 6)


def test_a_fresh_process_knows_the_schema(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is nothing that can be imported: the run could not be finished elsewhere."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    run = world.open(4, structured_output=SCHEMA)
    run.advance()
    run.advance()
    other = world.new_runner().get_run("run-1")
    other.wait()
    assert set(statuses(other).values()) == {"ok"}
    assert other.results()[0].output.label in {"good", "bad"}


def test_every_answer_is_held_against_it(world: World) -> None:
    """An answer that the schema forbids would get into the table."""
    world.sim.faults(kind="invalid_json_answer", match={"prompt": "number 1;"})
    run = world.run(3, structured_output=SCHEMA)
    assert statuses(run) == {"item-0": "ok", "item-1": "invalid_output", "item-2": "ok"}


def test_another_schema_is_another_job(world: World) -> None:
    """Answers of the old shape would be mixed with those of the new one."""
    world.run(3, structured_output=SCHEMA)
    other = copy.deepcopy(SCHEMA)
    other["properties"]["score"]["maximum"] = 5
    with pytest.raises(FingerprintMismatchError):
        world.run(3, structured_output=other)


def test_what_no_model_can_hold_is_refused(world: World) -> None:
    """A part of the schema would be dropped without a word."""
    schema = copy.deepcopy(SCHEMA)
    schema["properties"]["score"] = {"not": {"type": "string"}}
    with pytest.raises(ConfigurationError, match="score"):
        world.run(3, structured_output=schema)
    assert world.batches() == 0
