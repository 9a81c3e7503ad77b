"""From a Pydantic model to a provider's structured output, and from its answers back."""

from pydantic import BaseModel

from batchor_core.planning.schema_compiler.answers import AnswerValidator, InvalidAnswer
from batchor_core.planning.schema_compiler.compiled import CompiledSchema, Dialect, SchemaNote
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

_COMPILERS = {Dialect.OPENAI: compile_openai}


def compile_schema(
    model: type[BaseModel], dialect: Dialect, *, name: str | None = None
) -> CompiledSchema:
    """Write a model in a provider's dialect of JSON Schema, losing nothing.

    What the dialect cannot express is rewritten reversibly, or said in the description; each such
    step is a note. What can be neither is refused.

    Args:
        model: The user's output model.
        dialect: Whose dialect.
        name: The schema's name; the model's name by default, respelled as the provider takes it.

    Raises:
        SchemaNotSupportedError: With the field's path and a way out.
    """
    declaration = normalise(json_schema_of(model))
    return _COMPILERS[dialect](declaration, name or model.__name__)
