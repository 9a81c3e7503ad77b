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
    from batchor_core.errors import (
        ArtifactError,
        ArtifactUnavailableError,
        BatchorError,
        ConfigurationError,
        DuplicateItemIdError,
        FingerprintMismatchError,
        MissingColumnError,
        MissingCredentialsError,
        ModelNotImportableError,
        ProviderError,
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
    from batchor_core.model.policies import (
        ArtifactPolicy,
        ChunkPolicy,
        RetryPolicy,
        ReusePolicy,
        TimingPolicy,
    )
    from batchor_core.model.records import RunCounts, Usage
    from batchor_core.model.states import RunControlState, RunState
    from batchor_core.providers.anthropic import AnthropicProviderConfig
    from batchor_core.providers.config import EnqueueLimitConfig, TokenPrice
    from batchor_core.providers.gemini import GeminiProviderConfig
    from batchor_core.providers.openai import OpenAIEnqueueLimitConfig, OpenAIProviderConfig
    from batchor_core.results.items import ItemResult
    from batchor_core.run import Run, RunSummary
    from batchor_core.runner import BatchRunner
    from batchor_core.sources import (
        BatchItemSource,
        CheckpointedItemSource,
        CsvItemSource,
        FrameItemSource,
        ItemSource,
        JsonlItemSource,
        ParquetItemSource,
        open_source,
    )
    from batchor_core.store.sql import PostgresStorage, SQLiteStorage

__all__ = [
    "AnthropicProviderConfig",
    "ArtifactError",
    "ArtifactPolicy",
    "ArtifactStore",
    "ArtifactUnavailableError",
    "BatchItem",
    "BatchItemSource",
    "BatchJob",
    "BatchRunner",
    "BatchorError",
    "CheckpointedItemSource",
    "ChunkPolicy",
    "ConfigurationError",
    "CsvItemSource",
    "DuplicateItemIdError",
    "EnqueueLimitConfig",
    "File",
    "FingerprintMismatchError",
    "FrameItemSource",
    "GeminiProviderConfig",
    "Image",
    "ItemResult",
    "ItemSource",
    "JsonlItemSource",
    "LocalArtifactStore",
    "Message",
    "MissingColumnError",
    "MissingCredentialsError",
    "ModelNotImportableError",
    "OpenAIEnqueueLimitConfig",
    "OpenAIProviderConfig",
    "ParquetItemSource",
    "PostgresStorage",
    "PromptParts",
    "ProviderError",
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
    "TimingPolicy",
    "TokenPrice",
    "Usage",
    "WaitTimeoutError",
    "errors",
    "open_source",
]

_EXPORTS = {
    "batchor_core.artifacts": ("ArtifactStore", "LocalArtifactStore"),
    "batchor_core.errors": (
        "ArtifactError",
        "ArtifactUnavailableError",
        "BatchorError",
        "ConfigurationError",
        "DuplicateItemIdError",
        "FingerprintMismatchError",
        "MissingColumnError",
        "MissingCredentialsError",
        "ModelNotImportableError",
        "ProviderError",
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
    "batchor_core.model.policies": (
        "ArtifactPolicy",
        "ChunkPolicy",
        "RetryPolicy",
        "ReusePolicy",
        "TimingPolicy",
    ),
    "batchor_core.model.records": ("RunCounts", "Usage"),
    "batchor_core.model.states": ("RunControlState", "RunState"),
    "batchor_core.providers.anthropic": ("AnthropicProviderConfig",),
    "batchor_core.providers.config": ("EnqueueLimitConfig", "TokenPrice"),
    "batchor_core.providers.gemini": ("GeminiProviderConfig",),
    "batchor_core.providers.openai": ("OpenAIEnqueueLimitConfig", "OpenAIProviderConfig"),
    "batchor_core.results.items": ("ItemResult",),
    "batchor_core.run": ("Run", "RunSummary"),
    "batchor_core.runner": ("BatchRunner",),
    "batchor_core.sources": (
        "BatchItemSource",
        "CheckpointedItemSource",
        "CsvItemSource",
        "FrameItemSource",
        "ItemSource",
        "JsonlItemSource",
        "ParquetItemSource",
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
