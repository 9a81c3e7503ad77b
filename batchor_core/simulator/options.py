"""What a simulator is told when it starts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SimulatorOptions:
    """How the simulated provider behaves; the defaults are a fast and friendly provider.

    Attributes:
        batch_seconds: How long a batch works from creation to its end, all phases included.
        validating_seconds: The part of it spent `validating`; a tenth of it if None.
        finalizing_seconds: The part of it spent `finalizing` or `cancelling`; a tenth if None.
        max_requests_per_batch: Batches with more lines fail validation.
        max_file_bytes: Uploads above this are refused with status 400.
        enqueued_token_limit: Input tokens (body bytes / 4) of one model that may be in progress
            at a time; a batch above it fails. None is no limit.
        seed: Another seed gives other answers to the same requests.
        api_key: The only key accepted; None accepts any key that is not empty.
        spool_dir: Where files and the ledger are kept while it runs, in a new folder that is
            deleted at the end; the system's temporary folder if None.
        shuffle_output: Write result lines out of order, as real providers may.
    """

    batch_seconds: float = 2.0
    validating_seconds: float | None = None
    finalizing_seconds: float | None = None
    max_requests_per_batch: int = 50_000
    max_file_bytes: int = 200_000_000
    enqueued_token_limit: int | None = None
    seed: int = 0
    api_key: str | None = None
    spool_dir: Path | None = None
    shuffle_output: bool = False

    @property
    def validation_s(self) -> float:
        """Seconds between the creation of a batch and the end of its validation."""
        given = self.validating_seconds
        return self.batch_seconds / 10 if given is None else given

    @property
    def finalizing_s(self) -> float:
        """Seconds between the last executed request of a batch and its end."""
        given = self.finalizing_seconds
        return self.batch_seconds / 10 if given is None else given

    @property
    def working_s(self) -> float:
        """Seconds during which a batch executes its requests, evenly."""
        return max(0.0, self.batch_seconds - self.validation_s - self.finalizing_s)
