"""LLM batch jobs that survive crashes: providers, state store, executor, command line.

``BatchRunner`` starts and finds batch runs, ``BatchJob`` says what to do, ``Run`` is a handle on
one of them. Everything that is not named in ``__all__`` is internal.
"""

from batchor_core import errors
from batchor_core.artifacts import ArtifactStore, LocalArtifactStore
from batchor_core.errors import (
    ArtifactError,
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
from batchor_core.model.items import BatchItem, PromptParts
from batchor_core.model.policies import ArtifactPolicy, ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.model.records import RunCounts, Usage
from batchor_core.model.states import RunControlState, RunState
from batchor_core.providers.openai import OpenAIEnqueueLimitConfig, OpenAIProviderConfig
from batchor_core.run import ItemResult, Run, RunSummary
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
    "ArtifactError",
    "ArtifactPolicy",
    "ArtifactStore",
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
    "FingerprintMismatchError",
    "FrameItemSource",
    "ItemResult",
    "ItemSource",
    "JsonlItemSource",
    "LocalArtifactStore",
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
    "Usage",
    "WaitTimeoutError",
    "errors",
    "open_source",
]
