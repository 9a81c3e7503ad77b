"""What a handle on a run offers beside its state: finished items as they come, and its files."""

from collections.abc import Iterable

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.kinds import SENT_AND_RECEIVED, ArtifactKind, check_not_pruned
from batchor_core.clock import Clock
from batchor_core.executor.plan import RunPlan
from batchor_core.model.records import RunRecord
from batchor_core.places import open_target
from batchor_core.results.appending import Appended, append
from batchor_core.results.incremental import FinishedItems, ResultsPage, TableShape
from batchor_core.results.pruning import Pruned, prune_files
from batchor_core.results.raw_export import Exported, export_files
from batchor_core.store.protocol import Store


class RunFiles:
    """The part of ``Run`` that reads finished items as they come, exports files and removes them.

    Args:
        record: The run, as last read.
        plan: Its bound job.
        store: The control plane.
        artifacts: The data plane.
        clock: Time.
    """

    def __init__(
        self,
        *,
        record: RunRecord,
        plan: RunPlan,
        store: Store,
        artifacts: ArtifactStore,
        clock: Clock,
    ) -> None:
        self._record = record
        self._plan = plan
        self._store = store
        self._artifacts = artifacts
        self._clock = clock

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._record.run_id

    def read_terminal_results(self, after_sequence: int = 0, limit: int = 1000) -> ResultsPage:
        """Return finished items in the order in which they became final, while the run goes on.

        That order never changes: give a page's ``next_sequence`` as ``after_sequence``, in this or
        any other process, and no item is skipped or seen twice.

        Args:
            after_sequence: How many finished items were read before.
            limit: How many are returned at most.

        Raises:
            ArtifactError: A file is lost, altered, or was pruned.
        """
        return self._finished().page(after_sequence, limit)

    def append_terminal_results(self, path: str) -> Appended:
        """Append the rows of items that have finished since the last call to an export.

        Rows come in the order in which they became final. Where the export stands is kept with
        it: any process may go on with it, and what a crash left half-written is cut off.

        Args:
            path: A ``.jsonl`` or ``.csv`` file, or a folder: that gets a Parquet file a call.

        Raises:
            ConfigurationError: It is another run's export, or cannot be written.
            ArtifactError: A file of the run is lost, altered, or was pruned.
        """
        return append(self._finished(), self.run_id, self._plan.result_schema, path)

    def export_artifacts(
        self, target: str, kinds: Iterable[ArtifactKind | str] = SENT_AND_RECEIVED
    ) -> Exported:
        """Copy files of the finished run to a folder or URL, and check each copy.

        They lie there as they do here, below ``runs/<run id>/``, beside a ``manifest.json`` with
        the size and SHA-256 of each, which is written last.

        Args:
            target: A local folder, or any URL that fsspec understands.
            kinds: Which files; default: what was sent and received.

        Raises:
            RunNotFinishedError: The run is not finished.
            ArtifactPrunedError: Some of them were pruned.
            ArtifactError: A file is lost or altered, or a copy cannot be written or read back.
        """
        with open_target(target) as place:
            return export_files(
                self._store,
                self._artifacts,
                self.run_id,
                place,
                kinds=[ArtifactKind(kind) for kind in kinds],
                now=self._clock.now(),
            )

    def prune_artifacts(
        self,
        kinds: Iterable[ArtifactKind | str] = SENT_AND_RECEIVED,
        *,
        is_dry: bool = False,
    ) -> Pruned:
        """Remove files of the finished run, for good; see ``ArtifactKind`` for what is lost.

        Raw answers have to be exported before. The database keeps counts, usage and cost. What
        killed processes were downloading, of any run, goes too.

        Args:
            kinds: Which files; default: what was sent and received.
            is_dry: Only tell what would be removed.

        Raises:
            RunNotFinishedError: The run is not finished.
            PruneRefusedError: The files are still needed, or the raw answers were never exported.
        """
        named = [ArtifactKind(kind) for kind in kinds]
        if not is_dry:
            self._artifacts.remove_leftovers()
        return prune_files(self._store, self._artifacts, self.run_id, named, is_dry=is_dry)

    def _finished(self) -> FinishedItems:
        self._require(ArtifactKind.ITEMS, ArtifactKind.RESULTS)
        plan = self._plan
        shape = TableShape(
            result=plan.result_schema,
            output=plan.output_schema,
            validator=plan.validator,
            has_vectors=plan.dimensions is not None,
        )
        return FinishedItems(self._store, self._artifacts, self.run_id, shape)

    def _require(self, *kinds: ArtifactKind) -> None:
        """Raise ``ArtifactPrunedError`` if files of one of these kinds were removed on purpose."""
        record = self._store.get_run(self.run_id)
        check_not_pruned(record, kinds, "they cannot be read any more")
