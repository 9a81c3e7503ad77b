"""From a Pydantic model to a provider's structured output, and from its answers back."""

from collections.abc import Mapping

from pydantic import BaseModel

from batchor_core.planning.schema_compiler.answers import AnswerValidator, InvalidAnswer
from batchor_core.planning.schema_compiler.anthropic import compile_anthropic
from batchor_core.planning.schema_compiler.compiled import CompiledSchema, Dialect, SchemaNote
from batchor_core.planning.schema_compiler.gemini import (
    compile_gemini,
    compile_gemini_json_schema,
)
from batchor_core.planning.schema_compiler.normalise import normalise
from batchor_core.planning.schema_compiler.openai import compile_openai
from batchor_core.planning.schema_compiler.source import json_schema_of

__all__ = [
    "AnswerValidator",
    "CompiledSchema",
    "Dialect",
    "InvalidAnswer",
    "SchemaNote",
    "compile_schema",
]

_COMPILERS = {
    Dialect.OPENAI: compile_openai,
    Dialect.ANTHROPIC: compile_anthropic,
    Dialect.GEMINI: compile_gemini,
    Dialect.GEMINI_JSON_SCHEMA: compile_gemini_json_schema,
}


def compile_schema(
    source: type[BaseModel] | Mapping[str, object], dialect: Dialect, *, name: str | None = None
) -> CompiledSchema:
    """Write a model in a provider's dialect of JSON Schema, losing nothing.

    What the dialect cannot express is rewritten reversibly, or said in the description; each such
    step is a note. What can be neither is refused.

    Args:
        source: The user's output model, or a JSON Schema, of which `model_of` makes one.
        dialect: Whose dialect.
        name: The schema's name, respelled as the provider takes it; by default the model's name or
            the JSON Schema's title.

    Raises:
        SchemaNotSupportedError: With the field's path and a way out.
    """
    if isinstance(source, Mapping):
        return _COMPILERS[dialect](normalise(source), name or str(source.get("title", "output")))
    return _COMPILERS[dialect](normalise(json_schema_of(source)), name or source.__name__)
