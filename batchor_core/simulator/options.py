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
        max_requests_per_batch: Batches with more requests (of embeddings: inputs) are refused; the
            provider's own limit (OpenAI 50,000, Anthropic 100,000) if None.
        max_file_bytes: Larger uploads, or bodies of a create call that holds the requests, are
            refused; the provider's own limit (OpenAI 200 MB, Anthropic 256 MB) if None.
        enqueued_token_limit: Input tokens (body bytes / 4) of one model that may be in progress
            at a time; a batch above it fails. None is no limit.
        enqueued_request_limit: Requests of an account that may be in progress at a time, where
            that is what the provider counts (Anthropic); a create call above it is refused. None
            is no limit.
        seed: Another seed gives other answers to the same requests.
        api_key: The only key accepted; None accepts any key that is not empty.
        spool_dir: Where files and the ledger are kept while it runs, in a new folder that is
            deleted at the end; the system's temporary folder if None.
        shuffle_output: Write OpenAI's and Gemini's results out of order, as real providers may.
            Anthropic's and Vertex AI's always are.
        gcs_endpoint: Where a stand-in for Google Cloud Storage is served, which Vertex AI's jobs
            read from and write to; without one they all fail.
    """

    batch_seconds: float = 2.0
    validating_seconds: float | None = None
    finalizing_seconds: float | None = None
    max_requests_per_batch: int | None = None
    max_file_bytes: int | None = None
    enqueued_token_limit: int | None = None
    enqueued_request_limit: int | None = None
    seed: int = 0
    api_key: str | None = None
    spool_dir: Path | None = None
    shuffle_output: bool = False
    gcs_endpoint: str | None = None

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
