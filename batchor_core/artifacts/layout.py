"""Where each file of a run lies. These paths are stored: they are never renamed."""

from dataclasses import dataclass

from batchor_core.ids import path_segment


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """Paths of one run's files, relative to the artifact root.

    Names end in the fencing token of their writer, so that a stale process writes beside the
    file that others rely on and never over it.
    """

    run_id: str

    @property
    def folder(self) -> str:
        """The run's own folder."""
        return f"runs/{path_segment(self.run_id)}"

    def items(self, seq: int, token: int) -> str:
        """Return the items file of a chunk."""
        return f"{self.folder}/items/{seq:05d}-{token}.parquet"

    def requests(self, seq: int, token: int) -> str:
        """Return the request file of a chunk."""
        return f"{self.folder}/requests/{seq:05d}-{token}.jsonl"

    def raw(self, submission_id: str, token: int, kind: str, part: int) -> str:
        """Return a compressed copy of one result file; ``part`` counts files of a kind from 0."""
        number = f".{part}" if part else ""
        return f"{self.folder}/raw/{submission_id}-{token}{number}.{kind}.jsonl.zst"

    def outcomes(self, submission_id: str, token: int) -> str:
        """Return the outcome file of a submission."""
        return f"{self.folder}/outcomes/{submission_id}-{token}.parquet"

    def results(self, seq: int, token: int) -> str:
        """Return the part of the result table that belongs to a chunk of round 0."""
        return f"{self.folder}/results/{seq:05d}-{token}.parquet"
