"""Make the fields of the component from the options of a batch asset."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, ConfigDict, create_model

from batchor_core import ArtifactPolicy, ChunkPolicy, RetryPolicy, TokenPrice
from batchor_dagster.asset.options import Option, OptionsWithDefaults, options_in
from batchor_dagster.components.fields import (
    field,
    python_object,
    read_output,
    read_text,
    read_verbatim,
    resolved,
)
from batchor_dagster.components.policies import Checks, read_checks

_READERS: Mapping[str, tuple[Any, Any]] = {
    "output": (str | dict[str, Any], read_output),
    "build_prompt": (str, python_object),
    "params": (dict[str, Any], resolved),
    "price": (TokenPrice, resolved),
    "keep": (dict[str, str], read_verbatim),
    "chunks": (ChunkPolicy, resolved),
    "retries": (RetryPolicy, resolved),
    "artifacts": (ArtifactPolicy, resolved),
    "checks": (Checks | Literal[False], read_checks),
    "column_lineage": (str, python_object),
}
"""The type in YAML and the reader of some options. Of the others, texts stay as they are written,
and Dagster reads the rest."""


def resolver(option: Option) -> dg.Resolver:
    """Return the resolver that reads an option."""
    if option.name in _READERS:
        kind, read = _READERS[option.name]
        return field(kind, option.description, read)
    if option.annotation in (str, str | None):
        return field(option.annotation, option.description, read_text)
    as_dagster_does: dg.Resolver = dg.Resolver.default(description=option.description)
    return as_dagster_does


def options_of(component: "OptionFields") -> dict[str, Any]:
    """Return the options of a component as keywords of ``batch_asset``."""
    return {option.name: getattr(component, option.name) for option in _OPTIONS}


_OPTIONS = options_in(OptionsWithDefaults)


class _Fields(dg.Model):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


def _holds_record(annotation: Any) -> bool:
    """Whether a type includes a dataclass or a model, which the option's reader makes."""
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_holds_record, get_args(annotation)))
    is_class = isinstance(annotation, type) and not isinstance(annotation, GenericAlias)
    return is_class and (is_dataclass(annotation) or issubclass(annotation, BaseModel))


def _field(option: Option) -> tuple[Any, Any]:
    # Dagster would look for resolvers in the fields of such a type.
    kind = Any if _holds_record(option.annotation) else option.annotation
    return Annotated[kind, resolver(option)], option.default


if TYPE_CHECKING:
    # For type checkers, which cannot see the class that is made below.
    class OptionFields(OptionsWithDefaults, dg.Model):
        """The options as fields."""
else:
    OptionFields = create_model(
        "OptionFields",
        __base__=_Fields,
        __doc__="The options of a batch asset as fields.",
        **{option.name: _field(option) for option in _OPTIONS},
    )
