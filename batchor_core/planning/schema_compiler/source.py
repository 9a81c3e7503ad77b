"""The JSON Schema of a Pydantic model, with what Pydantic's own generator leaves unsaid."""

from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.nodes import JsonObject

UNSUPPORTED = "x-batchor-unsupported"
"""Marks a place that has no JSON Schema, with the reason; the normaliser names its path."""

HAS_DEFAULT = "x-batchor-has-default"
"""Marks a field whose default is computed, and therefore not in the schema."""


def json_schema_of(model: type[BaseModel]) -> JsonObject:
    """What the model accepts, by alias, as JSON Schema.

    Raises:
        SchemaNotSupportedError: If the model is not complete (an undefined forward reference).
    """
    try:
        schema: JsonObject = model.model_json_schema(
            by_alias=True, mode="validation", schema_generator=_AnswerSchemaGenerator
        )
    except PydanticUserError as exc:
        raise SchemaNotSupportedError(
            f"{model.__name__} has no JSON Schema ({exc.message}); "
            "define every type that it refers to before it is used"
        ) from exc
    return schema


class _AnswerSchemaGenerator(GenerateJsonSchema):
    """Pydantic's generator, where its output would lose something that an answer needs."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default", "skipped-discriminator"}  # noqa: RUF012 - Pydantic reads it from the class

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - Pydantic calls it
        """Generated titles repeat the field's name and cost tokens in every request."""
        return False

    def handle_invalid_for_json_schema(
        self,
        schema: Any,  # noqa: ARG002 - Pydantic calls it
        error_info: str,
    ) -> dict[str, Any]:
        """Mark the place instead of failing, since the failure would not name the field."""
        return {UNSUPPORTED: f"it has no JSON form ({error_info})"}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        """Ask for text: a JSON number would pass through a float somewhere and lose digits."""
        result: dict[str, Any] = {
            "type": "string",
            "format": "decimal",
            "pattern": _decimal_pattern(schema.get("max_digits"), schema.get("decimal_places")),
        }
        for bound, keyword in _DECIMAL_BOUNDS.items():
            if bound in schema:
                result[keyword] = str(schema[bound])  # type: ignore[literal-required]  # keys are above
        return result

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> dict[str, Any]:
        """Keep ``date-time``, which demands an offset, off moments that must not have one."""
        if schema.get("tz_constraint") != "naive":
            return super().datetime_schema(schema)
        return {"type": "string", "format": "local date-time", "pattern": _NAIVE_PATTERN}

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        """Say what the keys are, also where they are not strings."""
        result: dict[str, Any] = {"type": "object", "additionalProperties": True}
        if "values_schema" in schema:
            result["additionalProperties"] = self.generate_inner(schema["values_schema"])
        if "keys_schema" in schema:
            if not _takes_text(schema["keys_schema"]):
                return {
                    UNSUPPORTED: "keys that are a Literal of no strings never match JSON's keys"
                }
            result["propertyNames"] = self.generate_inner(schema["keys_schema"])
        self.update_with_validations(result, schema, self.ValidationsMapping.object)
        return result

    def named_tuple_schema(self, schema: Any) -> dict[str, Any]:
        """Ask for a named tuple by its names, which Pydantic takes as well as positions."""
        fields = schema["fields"]
        return {
            "type": "object",
            "properties": {each["name"]: self.generate_inner(each["schema"]) for each in fields},
            "required": [each["name"] for each in fields if each["schema"]["type"] != "default"],
        }

    def arguments_schema(self, schema: core_schema.ArgumentsSchema) -> dict[str, Any]:
        """The same for Pydantic below 2.14, which treats a named tuple as a call."""
        return self.kw_arguments_schema(schema["arguments_schema"], schema.get("var_kwargs_schema"))

    def bytes_schema(self, schema: core_schema.BytesSchema) -> dict[str, Any]:
        """Go by how bytes are validated; Pydantic's generator goes by how they are written."""
        encoding = self._config.val_json_bytes
        result = {"type": "string", "format": "base64url" if encoding == "base64" else "binary"}
        self.update_with_validations(result, schema, self.ValidationsMapping.bytes)
        return result

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        """Tell a computed default from a key that may be left out."""
        result = super().default_schema(schema)
        return result if "default" in result else {**result, HAS_DEFAULT: True}

    def model_field_schema(self, schema: core_schema.ModelField) -> dict[str, Any]:
        """Mark aliases that are paths: Pydantic's schema would ask for the field's own name."""
        return _refuse_alias_path(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: core_schema.DataclassField) -> dict[str, Any]:
        """Mark aliases that are paths, as for models."""
        return _refuse_alias_path(schema, super().dataclass_field_schema(schema))


_NAIVE_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_DECIMAL_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


def _decimal_pattern(max_digits: int | None, decimal_places: int | None) -> str:
    fraction = "*" if decimal_places is None else f"{{1,{decimal_places}}}"
    fraction_part = "" if decimal_places == 0 else rf"(\.\d{fraction.replace('*', '+')})?"
    if max_digits is None:
        return rf"^-?\d+{fraction_part}$"
    whole = max(max_digits - (decimal_places or 0), 1)
    return rf"^-?\d{{1,{whole}}}{fraction_part}$"


def _refuse_alias_path(
    schema: core_schema.ModelField | core_schema.DataclassField, result: dict[str, Any]
) -> dict[str, Any]:
    alias = schema.get("validation_alias")
    if not isinstance(alias, list) or any(len(each) == 1 for each in _alias_paths(alias)):
        return result
    return {UNSUPPORTED: "its alias is a path into other data; give it a plain alias"}


def _takes_text(keys: Any) -> bool:
    return keys["type"] != "literal" or all(isinstance(each, str) for each in keys["expected"])


def _alias_paths(alias: list[Any]) -> list[list[Any]]:
    return alias if alias and isinstance(alias[0], list) else [alias]
