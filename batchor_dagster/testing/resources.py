"""The resources of a test: the user's own, with the simulator and the test's folder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PrivateAttr

from batchor_core import ConfigurationError
from batchor_core.integration import Clock
from batchor_core.simulator import Simulator
from batchor_dagster.resources import (
    AnthropicBatchResource,
    BatchorResource,
    GeminiBatchResource,
    OpenAIBatchResource,
    ProviderBatchResource,
)
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.resources.io_manager import BatchParquetIOManager

IO_MANAGER = "io_manager"
_ACCOUNTS: Mapping[str, type[ProviderBatchResource]] = {
    "openai": OpenAIBatchResource,
    "anthropic": AnthropicBatchResource,
    "gemini": GeminiBatchResource,
}
_OF_REAL_ACCOUNTS = ("organization", "project", "workspace", "cloud_project", "location", "gcs_uri")


class TimedBatchorResource(BatchorResource):
    """A ``BatchorResource`` with the clock of a test."""

    _clock: Clock = PrivateAttr()

    @classmethod
    def of(cls, resource: BatchorResource, clock: Clock, **changes: Any) -> "TimedBatchorResource":
        """Return a copy of a resource with another clock, its environment variables read."""
        timed = cls(**_fields(resource, BatchorResource, changes))
        timed._clock = clock
        return timed

    @property
    def clock(self) -> Clock:
        """See ``BatchorResource.clock``."""
        return self._clock


@dataclass(frozen=True, kw_only=True)
class SimulatedWorld:
    """The folder, the simulator and the clock of a test.

    Attributes:
        folder: Where state and results are kept.
        simulator: Replaces every provider.
        clock: The clock of the batch runs.
    """

    folder: Path
    simulator: Simulator
    clock: Clock

    def resources(
        self, found: Mapping[str, Any], given: Mapping[str, Any], accounts: Iterable[str]
    ) -> dict[str, Any]:
        """Return the resources of the test's code location.

        Args:
            found: Resources of the user's ``Definitions``. ``batchor`` and each
                ``BatchParquetIOManager`` are moved to the folder.
            given: Resources that the test gives; they are used as they are, except accounts.
            accounts: Resource keys of the accounts that the batch assets use.
        """
        ours = {
            key: _in_folder(value, self.folder)
            for key, value in found.items()
            if isinstance(value, BatchParquetIOManager)
        }
        defaults = {IO_MANAGER: BatchParquetIOManager(base_path=str(self.folder / "results"))}
        merged = {**defaults, **found, **ours, **given}
        for key in accounts:
            merged[key] = self._account(key, merged.get(key))
        merged[BATCHOR_RESOURCE] = self._batchor(
            found.get(BATCHOR_RESOURCE), given.get(BATCHOR_RESOURCE)
        )
        return merged

    def _batchor(self, found: Any, given: Any) -> TimedBatchorResource:
        if isinstance(given, BatchorResource):
            return TimedBatchorResource.of(given, self.clock)
        return TimedBatchorResource.of(
            found if isinstance(found, BatchorResource) else BatchorResource(),
            self.clock,
            state=str(self.folder / "state.sqlite3"),
            artifacts=str(self.folder / "artifacts"),
        )

    def _account(self, key: str, resource: Any) -> ProviderBatchResource:
        """Return a copy of an account's resource that calls only the simulator."""
        if not isinstance(resource, ProviderBatchResource):
            if key not in _ACCOUNTS:
                raise ConfigurationError(
                    f"no resource {key!r}: give an OpenAIBatchResource, AnthropicBatchResource or "
                    "GeminiBatchResource under this key; its account is replaced by the simulator"
                )
            resource = _ACCOUNTS[key]()
        changes: dict[str, Any] = dict.fromkeys(_OF_REAL_ACCOUNTS)
        variables = self.simulator.environment
        match resource:
            case OpenAIBatchResource():
                changes |= {"base_url": variables["OPENAI_BASE_URL"], "api_version": None}
            case AnthropicBatchResource():
                changes |= {"base_url": variables["ANTHROPIC_BASE_URL"]}
            case _:
                changes |= {"base_url": variables["GOOGLE_GEMINI_BASE_URL"], "backend": "developer"}
        changes["api_key"] = variables["OPENAI_API_KEY"]
        changed: ProviderBatchResource = _changed(resource, changes)
        return changed


def _in_folder(manager: BatchParquetIOManager, folder: Path) -> BatchParquetIOManager:
    changed: BatchParquetIOManager = _changed(
        manager, {"base_path": str(folder / "results"), "storage_options": {}}
    )
    return changed


def _changed(resource: Any, changes: Mapping[str, Any]) -> Any:
    """Return a changed copy of a resource, its environment variables read."""
    return type(resource)(**_fields(resource, type(resource), changes))


def _fields(resource: Any, kind: type[BaseModel], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a resource with some changed; their old values are not read."""
    return {
        name: changes[name] if name in changes else _read(getattr(resource, name))
        for name in kind.model_fields
    }


def _read(value: Any) -> Any:
    """Return the value of an ``EnvVar``, or the value itself."""
    return value.get_value() if hasattr(value, "get_value") else value
