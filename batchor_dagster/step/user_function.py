"""Inspect and call the function that ``@batch_asset`` decorates."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import new_class
from typing import Any, get_type_hints

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.run_config import BatchRunConfig

CONFIG = "config"  # as Dagster calls it
_CONTEXT_NAMES = ("context", "_context", "context_", "_")  # Dagster's


@dataclass(frozen=True, kw_only=True)
class UserFunction:
    """The decorated function, ``functools.partial`` or callable object, and its parameters.

    Attributes:
        function: The decorated callable.
        ins: Names of the asset's explicit inputs; ``**kwargs`` takes those without a parameter.
    """

    function: Callable[..., Any]
    ins: frozenset[str] = frozenset()

    @cached_property
    def name(self) -> str:
        """The function's name, for the asset.

        Raises:
            ConfigurationError: It is a callable object without a name.
        """
        found = getattr(_unwrapped(self.function), "__name__", None)
        if found is None:
            raise ConfigurationError(
                f"a {type(self.function).__name__} has no name that the asset could take: give "
                "@batch_asset a name or a key"
            )
        return str(found)

    @property
    def doc(self) -> str | None:
        """The function's docstring."""
        return inspect.getdoc(_unwrapped(self.function))

    @cached_property
    def takes_context(self) -> bool:
        """Whether the first parameter is the context."""
        first = next(iter(inspect.signature(self.function).parameters.values()), None)
        if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
            return False
        hint = self._hints.get(first.name)
        is_typed = isinstance(hint, type) and issubclass(hint, dg.OpExecutionContext)
        return first.name in _CONTEXT_NAMES or is_typed or hint is dg.AssetExecutionContext

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The parameters without the context, with their annotations; None: without annotation."""
        known = list(inspect.signature(self.function).parameters.values())
        bound = getattr(self.function, "keywords", {})  # of a partial
        named = [
            p.name
            for p in known[1 if self.takes_context else 0 :]
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in bound
        ]
        if any(p.kind is p.VAR_KEYWORD for p in known):
            named += sorted(self.ins - set(named))
        return {name: self._hints.get(name) for name in named}

    @cached_property
    def resource_keys(self) -> frozenset[str]:
        """Names of the parameters that are resources to Dagster."""

        def probe(**_: Any) -> None: ...

        probe.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # Dagster reads it
            [_parameter(name, hint) for name, hint in self.annotations.items() if hint is not None]
        )
        return frozenset(dg.op(name="probe")(probe).required_resource_keys)

    @property
    def inputs(self) -> list[inspect.Parameter]:
        """The parameters that are upstream assets."""
        others = {CONFIG, *self.resource_keys}
        return [_parameter(n, hint) for n, hint in self.annotations.items() if n not in others]

    @cached_property
    def config_type(self) -> type[BatchRunConfig]:
        """The asset's config class: the function's own, with the fields of ``BatchRunConfig``.

        Raises:
            ConfigurationError: The function's own is no ``dagster.Config``, or has a field of
                ``BatchRunConfig``.
        """
        theirs = self.annotations.get(CONFIG, BatchRunConfig)
        if not (isinstance(theirs, type) and issubclass(theirs, dg.Config)):
            raise ConfigurationError(
                f"parameter 'config' of {self.name!r} has to be annotated with a subclass of "
                "dagster.Config (or of BatchRunConfig)"
            )
        if issubclass(theirs, BatchRunConfig):
            return theirs
        twice = sorted(theirs.model_fields.keys() & BatchRunConfig.model_fields.keys())
        if twice:
            raise ConfigurationError(
                f"{theirs.__name__}, the config of {self.name!r}, has a field {twice[0]!r}, which "
                "every batch asset's has: name it otherwise, or let the class inherit from "
                "BatchRunConfig"
            )
        both = new_class(theirs.__name__, (theirs, BatchRunConfig))
        both.__doc__ = theirs.__doc__
        return both

    def call(self, context: dg.AssetExecutionContext, arguments: Mapping[str, Any]) -> Any:
        """Call the function with those of the arguments that it takes; wait for an async one."""
        theirs = {name: arguments[name] for name in self.annotations if name in arguments}
        given = self.function(*((context,) if self.takes_context else ()), **theirs)
        if inspect.isawaitable(given):
            return asyncio.run(_awaited(given))
        return asyncio.run(_listed(given)) if inspect.isasyncgen(given) else given

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        target = _unwrapped(self.function)
        if not inspect.isroutine(target) and not isinstance(target, type):
            target = type(target).__call__
        return get_type_hints(target, include_extras=True)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, functools.partial) else function


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,  # Dagster sees no other inputs
        annotation=inspect.Parameter.empty if annotation is None else annotation,
    )


async def _awaited(given: Any) -> Any:
    return await given


async def _listed(given: Any) -> list[Any]:
    return [each async for each in given]
