"""Whether two JSON Schemas exclude each other, so that ``oneOf`` means the same as ``anyOf``."""

from collections.abc import Mapping

from batchor_core.planning.schema_leaves import Schema, is_record, one_or_many


def exclude_each_other(left: Schema, right: Schema) -> bool:
    """Whether no value can fit both schemas; False where that cannot be told easily."""
    kinds = [set(one_or_many(each.get("type", "any"))) for each in (left, right)]
    if "any" in kinds[0] | kinds[1]:
        return False
    if not kinds[0] & kinds[1]:
        return not {"integer", "number"} <= kinds[0] | kinds[1]
    if is_record(left) and is_record(right):
        shared = set(left.get("required", ())) & set(right.get("required", ()))
        return any(
            _have_no_value_in_common(left["properties"].get(key), right["properties"].get(key))
            for key in shared
        )
    return _have_no_value_in_common(left, right)


def _have_no_value_in_common(left: object, right: object) -> bool:
    values = [_values(each) for each in (left, right)]
    return all(values) and not any(each in values[1] for each in values[0])


def _values(schema: object) -> list[object]:
    if not isinstance(schema, Mapping):
        return []
    return (
        list(schema["enum"]) if "enum" in schema else [schema["const"]] if "const" in schema else []
    )
