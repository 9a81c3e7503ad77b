"""Read the fields of a ``defs.yaml``.

Dagster renders every text as a template and then reads it as a Python literal: ``"1"`` becomes a
number, and a brace may become an error. Here only text with ``{{`` or ``{%`` is a template; other
text (prompts, schemas, partition keys) stays as it was written.
"""

import pkgutil
import re
from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg
from pydantic import BaseModel

from batchor_core import ConfigurationError
from batchor_core.integration import load_model

_ENV = re.compile(r"""\{\{\s*env(?:\.(\w+)|\(\s*['"](\w+)['"]\s*\))\s*\}\}""")


def field(kind: Any, description: str, resolve: Any = None) -> dg.Resolver:
    """Return the resolver that reads a field of a component.

    Args:
        kind: The type of the field in YAML.
        description: Shown in editors and by ``dg``.
        resolve: Turns the YAML value into the field's value; default: ``resolved``.
    """
    return dg.Resolver(
        resolve or resolved,
        model_field_type=kind,
        description=description,
        inject_before_resolve=False,
    )


def resolved(context: dg.ResolutionContext, value: Any) -> Any:
    """Render the templates in a value; a model becomes another one of the same class."""
    if isinstance(value, BaseModel):
        late = getattr(type(value), "LATE_FIELDS", ())
        fields = value.model_dump(exclude_unset=True)
        return type(value).model_validate(_rendered(context, fields, late))
    return _rendered(context, value)


def read_verbatim(_context: dg.ResolutionContext, value: Any) -> Any:
    """Leave a value as it was written."""
    return value


def read_text(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Render a text, which stays text also if it looks like a number.

    Raises:
        ValueError: Its template uses an environment variable that is not set.
    """
    if value is None:
        return None
    rendered = _rendered(context, value)
    if rendered is None:
        raise ValueError(f"{value!r} is empty: is the environment variable set?")
    return rendered if isinstance(rendered, str) else str(rendered)


def read_late(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Read ``{{ env.NAME }}`` as an ``EnvVar``, whose value is looked up when it is used.

    A value that is looked up when the project is loaded ends up in Dagster's snapshots and UI.

    Raises:
        ValueError: A variable is mixed with other text.
    """
    match = _ENV.fullmatch((value or "").strip())
    if match:
        return dg.EnvVar(match[1] or match[2])
    if value and re.search(r"\{\{[^}]*\benv\b", value):
        raise ValueError(f'give {value!r} as "{{{{ env.NAME }}}}" alone, so that it is not stored')
    rendered = _rendered(context, value)
    return rendered if rendered is None or isinstance(rendered, str) else str(rendered)


def read_output(context: dg.ResolutionContext, value: Any) -> Any:
    """Import an output model; a JSON Schema stays as it was written."""
    found = _rendered(context, value) if isinstance(value, str) else value
    return load_model(found) if isinstance(found, str) else found


def python_object(context: dg.ResolutionContext, value: Any) -> Any:
    """Import the object that ``package.module:name`` names."""
    found = resolved(context, value)
    return pkgutil.resolve_name(found) if isinstance(found, str) else found


def secret_text(value: str) -> str:
    """Return the text that ``read_late`` has read, with the value of an ``EnvVar``.

    Raises:
        ConfigurationError: Its environment variable is not set.
    """
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise ConfigurationError(f"environment variable {value.env_var_name!r} is not set")
    return found


def _rendered(context: dg.ResolutionContext, value: Any, late_fields: Collection[str] = ()) -> Any:
    if isinstance(value, Mapping):
        return {
            key: (read_late if key in late_fields else _rendered)(context.at_path(key), each)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_rendered(context.at_path(index), each) for index, each in enumerate(value)]
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return context.resolve_value(value, as_type=object)
    return value
