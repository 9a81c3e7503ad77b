"""Every exception that leaves the core, in one tree.

::

    BatchorError
    ├── ConfigurationError                 the job or its surroundings cannot work
    │   ├── MissingCredentialsError        no key for the provider
    │   ├── SourceError                    an input cannot be read, or a row of it is unusable
    │   │   ├── DuplicateItemIdError       two rows carry the same item id
    │   │   └── MissingColumnError         a named column is not in the input
    │   ├── PromptTemplateError            a template names a column that is not there
    │   ├── SchemaNotSupportedError        the output model cannot be expressed for this provider
    │   ├── ResultSchemaError              the result table would have two columns of one name
    │   ├── ModelNotImportableError        the output model cannot be found again by another process
    │   └── BudgetError                    a budget cannot be enforced: the price is unknown
    │       └── BudgetExceededError        the estimate exceeds the budget; nothing was sent
    ├── RunError                           about one batch run
    │   ├── RunNotFoundError
    │   ├── FingerprintMismatchError       the same run id, with different input or declaration
    │   ├── RunPausedError                 waiting is pointless until somebody resumes
    │   ├── RunNotFinishedError            results are asked for before the run is terminal
    │   ├── RunIngestionSourceRequiredError  ingestion was cut short and no source is attached
    │   ├── NothingToRetryError            no failed item is left that may be asked again
    │   ├── PruneRefusedError              files are to be removed that are still needed
    │   ├── WaitTimeoutError               ``wait(timeout)`` ran out
    │   └── RowConservationError           rows were lost or doubled: a bug, never ignored
    ├── StoreError
    │   ├── LeaseLostError                 another process advances this run now
    │   └── StaleTransitionError           a guarded update found another state than expected
    ├── ArtifactError
    │   ├── ArtifactMissingError           a file that the store points at is gone
    │   ├── ArtifactPrunedError            a file was removed on purpose
    │   ├── ArtifactAlteredError           a file's size or SHA-256 is not what the store recorded
    │   └── ArtifactUnavailableError       the object store cannot be reached now; try again
    └── ProviderError                      a call to a provider failed; carries its ``Fault``

A failed *item* is a value (an outcome), never an exception.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchor_core.model.faults import Fault


class BatchorError(Exception):
    """Base of everything this library raises on purpose."""


class ConfigurationError(BatchorError):
    """The job or its surroundings cannot work; nothing was sent."""


class MissingCredentialsError(ConfigurationError):
    """No credentials were given and the provider's environment variable is not set."""


class SourceError(ConfigurationError):
    """An input cannot be read, or a row of it is unusable. The message names file and line."""


class DuplicateItemIdError(SourceError):
    """Two rows of the input carry the same item id."""


class MissingColumnError(SourceError):
    """A column that the job names is not in the input."""


class PromptTemplateError(ConfigurationError):
    """A prompt template is malformed or names a column that the input does not have."""


class SchemaNotSupportedError(ConfigurationError):
    """The output model cannot be expressed in the provider's schema dialect.

    Args:
        message: What is not supported and the way out.
        path: The field's path in the model, as ``ticket.lines[].price``; empty for the root.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword argument."""
        return (_rebuild_schema_error, (self.message, self.path))


def _rebuild_schema_error(message: str, path: str) -> SchemaNotSupportedError:
    return SchemaNotSupportedError(message, path=path)


class ResultSchemaError(ConfigurationError):
    """Two columns of the result table would have the same name."""


class ModelNotImportableError(ConfigurationError):
    """Another process could not find the output model again by its import path."""


class BudgetError(ConfigurationError):
    """A budget cannot be enforced, because nobody knows what the model's tokens cost."""


class BudgetExceededError(BudgetError):
    """The estimate of a run exceeds its budget; nothing was sent. A larger budget lets it go on."""


class RunError(BatchorError):
    """Something about one batch run."""


class RunNotFoundError(RunError):
    """The store knows no run of this id."""


class FingerprintMismatchError(RunError):
    """The run id exists with different input, prompts, model, parameters or output schema."""


class RunPausedError(RunError):
    """The run is paused: it goes on only after ``resume``. The message carries the reason."""


class RunNotFinishedError(RunError):
    """Final results are asked for before the run is terminal."""


class RunIngestionSourceRequiredError(RunError):
    """Ingestion was cut short and this process has no source to go on with."""


class NothingToRetryError(RunError):
    """No failed item of the run is left that may be asked again."""


class PruneRefusedError(RunError):
    """Files are to be removed that are not exported, not delivered, or still read by a run."""


class WaitTimeoutError(RunError):
    """The run was not finished within the time given to ``wait``; it goes on."""


class RowConservationError(RunError):
    """Rows were lost or doubled. This is a bug in the library and stops the run."""


class StoreError(BatchorError):
    """The control plane refused or failed."""


class LeaseLostError(StoreError):
    """The lease ran out or was taken over: another process advances this run now."""


class StaleTransitionError(StoreError):
    """A guarded update found the record in another state than the caller believed."""


class ArtifactError(BatchorError):
    """Something about a file of the data plane."""


class ArtifactMissingError(ArtifactError):
    """A file that the store points at does not exist (any more)."""


class ArtifactPrunedError(ArtifactError):
    """A file was removed on purpose, by ``prune_artifacts``: it is not lost."""


class ArtifactAlteredError(ArtifactError):
    """A file is not what the store recorded: its size or its SHA-256 differs."""


class ArtifactUnavailableError(ArtifactError):
    """The object store cannot be reached now; nothing is lost, and the next cycle tries again."""


class ProviderError(BatchorError):
    """A call to a provider failed.

    Args:
        message: One line that never holds a key or a prompt.
        fault: Whose fault it is, what it touches and what may be done about it.
    """

    def __init__(self, message: str, fault: "Fault") -> None:
        super().__init__(message)
        self.fault = fault

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with both arguments."""
        return (ProviderError, (str(self), self.fault))
