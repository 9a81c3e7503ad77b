"""What the schema compiler hands out."""

from dataclasses import dataclass
from enum import StrEnum

from batchor_core.planning.schema_compiler.nodes import JsonObject
from batchor_core.planning.schema_compiler.restore import Restorer


class Dialect(StrEnum):
    """Whose subset of JSON Schema is meant. The values are stored: never rename them."""

    OPENAI = "openai"
    """Strict structured outputs."""
    ANTHROPIC = "anthropic"
    """``output_config.format``."""
    GEMINI = "gemini"
    """``responseSchema``, a subset of OpenAPI's schema object."""
    GEMINI_JSON_SCHEMA = "gemini_json_schema"
    """``responseJsonSchema``."""


@dataclass(frozen=True, kw_only=True)
class SchemaNote:
    """One rewriting that the provider's dialect made necessary.

    Attributes:
        path: The field, as ``ticket.lines[].price``; empty for the root.
        what: What was done, in one sentence.
    """

    path: str
    what: str


@dataclass(frozen=True, kw_only=True)
class CompiledSchema:
    """An output model in a provider's dialect.

    Attributes:
        name: The schema's name as the provider takes it.
        schema: The JSON Schema. Its key order depends on the declaration alone, so its bytes are
            the same in every process and Python version and may enter a fingerprint.
        notes: Every rewriting, in the order of the fields.
        restorer: Turns an answer in the dialect's shape back into the model's; None if the two
            shapes are the same.
    """

    name: str
    schema: JsonObject
    notes: tuple[SchemaNote, ...]
    restorer: Restorer | None = None

    @property
    def needs_restore(self) -> bool:
        """Whether answers must pass through `restore` before the model validates them."""
        return self.restorer is not None

    def restore(self, answer: object) -> object:
        """Reverse the lossless rewritings on parsed JSON.

        What does not have the dialect's shape is passed on as it is: the user's model then
        rejects it with its own message.

        Raises:
            UnrestorableAnswerError: If the answer names one key of a mapping twice.
        """
        return answer if self.restorer is None else self.restorer(answer)
