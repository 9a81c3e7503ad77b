"""The dialect of OpenAI's strict structured outputs.

Source of the rules: OpenAI's guide to structured outputs, "Supported schemas". Every object is
closed and every key required; ``$ref`` stands alone; bounds of strings are not known.
"""

from batchor_core.planning.schema_compiler.compiled import CompiledSchema
from batchor_core.planning.schema_compiler.emitter import emit
from batchor_core.planning.schema_compiler.limits import check_openai_limits
from batchor_core.planning.schema_compiler.nodes import Declaration
from batchor_core.planning.schema_compiler.rules import ARRAY_BOUNDS, NUMBER_BOUNDS, Rules

OPENAI = Rules(
    keywords={
        "string": frozenset({"pattern"}),
        "integer": NUMBER_BOUNDS,
        "number": NUMBER_BOUNDS,
        "array": ARRAY_BOUNDS,
    },
    formats={
        "string": frozenset(
            {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
        )
    },
)


def compile_openai(declaration: Declaration, name: str) -> CompiledSchema:
    """Write the declaration in the strict dialect.

    Raises:
        SchemaNotSupportedError: If that would lose something, or exceeds one of OpenAI's limits.
    """
    compiled = emit(declaration, OPENAI, name)
    check_openai_limits(compiled.schema)
    return compiled
