"""LLM batch jobs that survive crashes: providers, state store, executor, command line.

``BatchRunner`` starts and finds batch runs, ``BatchJob`` says what to do, ``Run`` is a handle on
one of them. Everything that is not named in ``__all__`` is internal.

A name is loaded when it is first used: the libraries behind all of them together take half a
second, which ``batchor --help`` or reading a configuration need not pay.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchor_core import errors
    from batchor_core.artifacts import ArtifactStore, LocalArtifactStore
    from batchor_core.artifacts.kinds import ArtifactKind
    from batchor_core.errors import (
        ArtifactError,
        ArtifactPrunedError,
        ArtifactUnavailableError,
        BatchorError,
        BudgetError,
        BudgetExceededError,
        ConfigurationError,
        DuplicateItemIdError,
        FingerprintMismatchError,
        MissingColumnError,
        MissingCredentialsError,
        ModelNotImportableError,
        NothingToRetryError,
        ProviderError,
        PruneRefusedError,
        RunIngestionSourceRequiredError,
        RunNotFinishedError,
        RunNotFoundError,
        RunPausedError,
        SchemaNotSupportedError,
        SourceError,
        WaitTimeoutError,
    )
    from batchor_core.job import BatchJob
    from batchor_core.model.items import BatchItem, File, Image, Message, PromptParts
    from batchor_core.model.journal import JournalSummary, summary_from_events
    from batchor_core.model.policies import (
        ArtifactPolicy,
        BudgetPolicy,
        ChunkPolicy,
        RetryPolicy,
        ReusePolicy,
        TimingPolicy,
    )
    from batchor_core.model.records import Event, RunCounts, Usage
    from batchor_core.model.states import RunControlState, RunState
    from batchor_core.observability import (
        EventListener,
        LoggingListener,
        OpenTelemetryListener,
    )
    from batchor_core.planning.estimate import Estimate
    from batchor_core.providers.anthropic import AnthropicProviderConfig
    from batchor_core.providers.config import EnqueueLimitConfig, TokenPrice
    from batchor_core.providers.gemini import GeminiProviderConfig
    from batchor_core.providers.openai import OpenAIEnqueueLimitConfig, OpenAIProviderConfig
    from batchor_core.results.costs import CostLine
    from batchor_core.results.incremental import ResultsPage
    from batchor_core.results.items import ItemResult
    from batchor_core.run import Run, RunSummary
    from batchor_core.runner import BatchRunner
    from batchor_core.sources import (
        BatchItemSource,
        CheckpointedItemSource,
        CompositeItemSource,
        CsvItemSource,
        FilesItemSource,
        FrameItemSource,
        ItemSource,
        JsonlItemSource,
        ParquetItemSource,
        SqlItemSource,
        open_source,
    )
    from batchor_core.store.sql import PostgresStorage, SQLiteStorage

__all__ = [
    "AnthropicProviderConfig",
    "ArtifactError",
    "ArtifactKind",
    "ArtifactPolicy",
    "ArtifactPrunedError",
    "ArtifactStore",
    "ArtifactUnavailableError",
    "BatchItem",
    "BatchItemSource",
    "BatchJob",
    "BatchRunner",
    "BatchorError",
    "BudgetError",
    "BudgetExceededError",
    "BudgetPolicy",
    "CheckpointedItemSource",
    "ChunkPolicy",
    "CompositeItemSource",
    "ConfigurationError",
    "CostLine",
    "CsvItemSource",
    "DuplicateItemIdError",
    "EnqueueLimitConfig",
    "Estimate",
    "Event",
    "EventListener",
    "File",
    "FilesItemSource",
    "FingerprintMismatchError",
    "FrameItemSource",
    "GeminiProviderConfig",
    "Image",
    "ItemResult",
    "ItemSource",
    "JournalSummary",
    "JsonlItemSource",
    "LocalArtifactStore",
    "LoggingListener",
    "Message",
    "MissingColumnError",
    "MissingCredentialsError",
    "ModelNotImportableError",
    "NothingToRetryError",
    "OpenAIEnqueueLimitConfig",
    "OpenAIProviderConfig",
    "OpenTelemetryListener",
    "ParquetItemSource",
    "PostgresStorage",
    "PromptParts",
    "ProviderError",
    "PruneRefusedError",
    "ResultsPage",
    "RetryPolicy",
    "ReusePolicy",
    "Run",
    "RunControlState",
    "RunCounts",
    "RunIngestionSourceRequiredError",
    "RunNotFinishedError",
    "RunNotFoundError",
    "RunPausedError",
    "RunState",
    "RunSummary",
    "SQLiteStorage",
    "SchemaNotSupportedError",
    "SourceError",
    "SqlItemSource",
    "TimingPolicy",
    "TokenPrice",
    "Usage",
    "WaitTimeoutError",
    "errors",
    "open_source",
    "summary_from_events",
]

_EXPORTS = {
    "batchor_core.artifacts": ("ArtifactStore", "LocalArtifactStore"),
    "batchor_core.artifacts.kinds": ("ArtifactKind",),
    "batchor_core.errors": (
        "ArtifactError",
        "ArtifactPrunedError",
        "ArtifactUnavailableError",
        "BatchorError",
        "BudgetError",
        "BudgetExceededError",
        "ConfigurationError",
        "DuplicateItemIdError",
        "FingerprintMismatchError",
        "MissingColumnError",
        "MissingCredentialsError",
        "ModelNotImportableError",
        "NothingToRetryError",
        "ProviderError",
        "PruneRefusedError",
        "RunIngestionSourceRequiredError",
        "RunNotFinishedError",
        "RunNotFoundError",
        "RunPausedError",
        "SchemaNotSupportedError",
        "SourceError",
        "WaitTimeoutError",
    ),
    "batchor_core.job": ("BatchJob",),
    "batchor_core.model.items": ("BatchItem", "File", "Image", "Message", "PromptParts"),
    "batchor_core.model.journal": ("JournalSummary", "summary_from_events"),
    "batchor_core.model.policies": (
        "ArtifactPolicy",
        "BudgetPolicy",
        "ChunkPolicy",
        "RetryPolicy",
        "ReusePolicy",
        "TimingPolicy",
    ),
    "batchor_core.model.records": ("Event", "RunCounts", "Usage"),
    "batchor_core.model.states": ("RunControlState", "RunState"),
    "batchor_core.observability": (
        "EventListener",
        "LoggingListener",
        "OpenTelemetryListener",
    ),
    "batchor_core.planning.estimate": ("Estimate",),
    "batchor_core.providers.anthropic": ("AnthropicProviderConfig",),
    "batchor_core.providers.config": ("EnqueueLimitConfig", "TokenPrice"),
    "batchor_core.providers.gemini": ("GeminiProviderConfig",),
    "batchor_core.providers.openai": ("OpenAIEnqueueLimitConfig", "OpenAIProviderConfig"),
    "batchor_core.results.costs": ("CostLine",),
    "batchor_core.results.incremental": ("ResultsPage",),
    "batchor_core.results.items": ("ItemResult",),
    "batchor_core.run": ("Run", "RunSummary"),
    "batchor_core.runner": ("BatchRunner",),
    "batchor_core.sources": (
        "BatchItemSource",
        "CheckpointedItemSource",
        "CompositeItemSource",
        "CsvItemSource",
        "FilesItemSource",
        "FrameItemSource",
        "ItemSource",
        "JsonlItemSource",
        "ParquetItemSource",
        "SqlItemSource",
        "open_source",
    ),
    "batchor_core.store.sql": ("PostgresStorage", "SQLiteStorage"),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

if not TYPE_CHECKING:  # type checkers read the imports above, and so refuse unknown names

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("batchor_core.errors")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return __all__
