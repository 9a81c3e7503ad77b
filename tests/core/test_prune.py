"""Exporting what was sent and received, and removing files that nobody needs any more."""

import json
import os
import shutil
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from batchor_core import ArtifactKind, ArtifactPrunedError, PruneRefusedError, Run
from batchor_core.artifacts import ArtifactStore
from batchor_core.errors import (
    ArtifactError,
    ArtifactMissingError,
    ConfigurationError,
    RunNotFinishedError,
)
from batchor_core.model.policies import ArtifactPolicy, ChunkPolicy, RetryPolicy
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.protocol import RawPart
from batchor_core.testing.records import member, waiter_request
from tests.core.world import Verdict, World, items

TWOS = ChunkPolicy(max_requests=2)
DROP = ArtifactPolicy(raw_results="drop")


def folder(world: World, kind: str, run_id: str = "run-1") -> Path:
    """Where files of a kind lie."""
    return world.artifacts / "runs" / run_id / kind


def kinds_left(world: World, run_id: str = "run-1") -> set[str]:
    """The kinds that there are files of."""
    parent = world.artifacts / "runs" / run_id
    return {each.name for each in parent.iterdir() if any(each.iterdir())}


def retried_run(world: World, **options: Any) -> Run:
    """A finished run of several batches and two rounds."""
    world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 1;"})
    return world.run(5, chunk_policy=TWOS, retry_policy=RetryPolicy(delay_s=1), **options)


def _decompressed(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).readall()


class TestExport:
    def test_every_answer_is_there_and_checked(self, world: World, tmp_path: Path) -> None:
        """An audit would lack an answer, or could not tell whether it was changed."""
        run = retried_run(world)
        done = run.export_artifacts(str(tmp_path / "out"))
        manifest = json.loads((tmp_path / "out" / done.manifest).read_text())
        assert (manifest["run_id"], manifest["kinds"]) == ("run-1", ["raw", "requests"])
        names = {Path(file["path"]).name for file in manifest["files"]}
        kept = [*folder(world, "raw").iterdir(), *folder(world, "requests").iterdir()]
        assert names == {path.name for path in kept}
        assert (done.files, len(manifest["files"])) == (len(kept), len(kept))
        assert done.size_bytes == sum(path.stat().st_size for path in kept)
        submissions = {s.submission_id for s in world.runner.store.list_submissions("run-1")}
        of_raw = [file for file in manifest["files"] if file["what"] == "raw"]
        assert {file["submission_id"] for file in of_raw} == submissions
        for file in manifest["files"]:
            original = (world.artifacts / file["path"]).read_bytes()
            assert (tmp_path / "out" / file["path"]).read_bytes() == original
            assert file["sha256"] == sha256(original).hexdigest()

    def test_raw_answers_are_byte_for_byte(self, world: World, tmp_path: Path) -> None:
        """What the provider said could not be shown to it again."""
        run = world.run(2)
        run.export_artifacts(str(tmp_path / "out"), ["raw"])
        (path,) = (tmp_path / "out").rglob("*.output.jsonl.zst")
        lines = _decompressed(path).splitlines()
        assert len(lines) == 2
        assert all(json.loads(line)["response"]["status_code"] == 200 for line in lines)

    def test_answers_in_several_files(self, world: World, tmp_path: Path) -> None:
        """The second file of a provider that sends many would take the place of the first."""

        class InTwo(OpenAIProvider):
            def download_results(self, *args: Any, **options: Any) -> list[RawPart]:
                (part,) = super().download_results(*args, **options)
                first, rest = part.path.read_bytes().split(b"\n", 1)
                second = part.path.with_suffix(".second")
                part.path.write_bytes(first + b"\n")
                second.write_bytes(rest)
                return [part, RawPart(kind=part.kind, path=second)]

        run = world.new_runner(connect=InTwo).run_and_wait(world.job(3), run_id="run-1")
        assert run.export_artifacts(str(tmp_path / "out"), ["raw"]).files == 2
        lines = [
            line
            for path in (tmp_path / "out").rglob("*.output.jsonl.zst")
            for line in _decompressed(path).splitlines()
        ]
        assert len(lines) == 3

    def test_a_lost_file_ends_it_before_the_manifest(self, world: World, tmp_path: Path) -> None:
        """Answers would count as exported, and be removed, although some were not."""
        run = world.run(2)
        shutil.rmtree(folder(world, "raw"))
        with pytest.raises(ArtifactMissingError):
            run.export_artifacts(str(tmp_path / "out"))
        assert not list((tmp_path / "out").rglob("manifest.json"))
        with pytest.raises(PruneRefusedError):
            run.prune_artifacts()

    def test_it_may_be_repeated(self, world: World, tmp_path: Path) -> None:
        """An export that was interrupted could not be finished."""
        run = world.run(2)
        first = run.export_artifacts(str(tmp_path / "out"))
        assert run.export_artifacts(str(tmp_path / "out")) == first

    def test_before_the_end_or_onto_itself(self, world: World, tmp_path: Path) -> None:
        """Answers that are still to come would count as exported, or nothing be copied at all."""
        run = world.open()
        run.advance()
        with pytest.raises(RunNotFinishedError):
            run.export_artifacts(str(tmp_path / "out"))
        run.wait()
        with pytest.raises(ConfigurationError, match="where the files lie already"):
            run.export_artifacts(str(world.artifacts))

    def test_an_export_can_be_put_back(self, world: World, tmp_path: Path) -> None:
        """Requests that were archived could not be sent again after all."""
        run = world.run(2, retry_policy=RetryPolicy(max_attempts=1))
        run.export_artifacts(str(tmp_path / "out"), list(ArtifactKind))
        shutil.rmtree(world.artifacts / "runs")
        shutil.copytree(tmp_path / "out" / "runs", world.artifacts / "runs")
        assert [item.status for item in run.results()] == ["ok", "ok"]

    def test_other_places(self, world: World) -> None:
        """An archive on an object store could not be written."""
        run = world.run(2)
        done = run.export_artifacts("memory://archive-of-test/below")
        assert done.files == 2


class TestPrune:
    def test_raw_answers_have_to_be_exported_first(self, world: World, tmp_path: Path) -> None:
        """The only copy of what was paid for would be removed."""
        run = retried_run(world)
        with pytest.raises(PruneRefusedError, match="were never exported: export them first"):
            run.prune_artifacts()
        assert kinds_left(world) == {"items", "requests", "raw", "outcomes", "results"}
        run.export_artifacts(str(tmp_path / "out"))
        pruned = run.prune_artifacts()
        assert kinds_left(world) == {"items", "outcomes", "results"}
        assert (list(pruned.kinds), pruned.refused) == (["raw", "requests"], None)
        assert pruned.size_bytes == sum(
            path.stat().st_size for path in (tmp_path / "out").rglob("*.jsonl*")
        )

    def test_an_export_of_something_else_does_not_count(self, world: World, tmp_path: Path) -> None:
        """Exporting the requests would free the answers."""
        run = world.run(2)
        run.export_artifacts(str(tmp_path / "out"), ["requests"])
        with pytest.raises(PruneRefusedError):
            run.prune_artifacts(["raw"])

    def test_without_raw_answers_nothing_has_to_be_exported(self, world: World) -> None:
        """Whoever keeps none could never remove the requests."""
        run = world.run(2, artifact_policy=DROP)
        assert run.prune_artifacts().files == 1
        assert kinds_left(world) == {"items", "outcomes", "results"}

    def test_results_stay_readable(self, world: World, tmp_path: Path) -> None:
        """Removing what was sent and received would take the answers with it."""
        run = retried_run(world, structured_output=Verdict)
        before, table = run.results(), run.results_frame().collect()
        run.export_artifacts(str(tmp_path / "out"))
        run.prune_artifacts()
        assert run.results() == before
        assert run.results_frame().collect().equals(table)
        assert len(run.read_terminal_results().items) == 5
        assert run.summary().counts.ok == 5

    def test_later_reads_say_pruned_and_not_lost(self, world: World) -> None:
        """An operator would look for a fault where somebody has made room."""
        run = world.run(2, artifact_policy=DROP)
        run.prune_artifacts(["results"])
        for read in (run.results, run.results_frame, lambda: list(run.result_parts())):
            with pytest.raises(ArtifactPrunedError, match="results files of run 'run-1' were"):
                read()
        with pytest.raises(ArtifactPrunedError, match="leave them out"):
            run.export_artifacts("memory://archive-of-test", ["results"])
        assert run.summary().counts.ok == 2
        assert run.summary().cost_usd

    def test_twice_changes_nothing(self, world: World) -> None:
        """A repeated clean-up would fail, or count its bytes again."""
        run = world.run(2, artifact_policy=DROP)
        run.prune_artifacts()
        again = run.prune_artifacts()
        assert (list(again.kinds), again.files, again.size_bytes) == ([], 0, 0)
        kinds = [e.kind for e in world.runner.store.list_events("run-1")]
        assert kinds[-2:] == ["artifacts.prune_begun", "artifacts.pruned"]

    @pytest.mark.parametrize("is_one", [True, False])
    def test_downloads_of_a_killed_process_go(self, world: World, is_one: bool) -> None:
        """Answers would stay in clear text after their files were pruned."""
        run = world.run(3, artifact_policy=DROP)
        left = world.artifacts / "spool" / "tmp1"  # of a process that has not locked it
        left.mkdir()
        os.utime(left, (0, 0))

        def prune(*, is_dry: bool) -> None:
            if is_one:
                run.prune_artifacts(is_dry=is_dry)
            else:
                world.runner.prune_artifacts(timedelta(0), is_dry=is_dry)

        prune(is_dry=True)
        assert left.exists()
        prune(is_dry=False)
        assert not left.exists()

    def test_a_dry_run_removes_nothing(self, world: World) -> None:
        """Whoever only asks would lose files."""
        run = world.run(2, artifact_policy=DROP)
        assert run.prune_artifacts(is_dry=True).files == 1
        assert "requests" in kinds_left(world)
        assert run.record.pruned == run.refresh().record.pruned == {}
        run = world.run(2, run_id="kept")
        with pytest.raises(PruneRefusedError):
            run.prune_artifacts(is_dry=True)

    @pytest.mark.parametrize("where", ["before", "between", "after"])
    def test_a_crash_on_the_way_is_repaired_by_the_next(
        self, world: World, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """Files would stay for ever, or be called lost, after a prune that was killed."""
        run = world.run(2, artifact_policy=DROP)
        real = ArtifactStore.delete_folder

        def dies(self: ArtifactStore, path: str) -> None:
            if where == "after" or (where == "between" and path.endswith("requests")):
                real(self, path)
            if where != "between" or path.endswith("items"):
                raise _StopError

        with monkeypatch.context() as patch:
            patch.setattr(ArtifactStore, "delete_folder", dies)
            with pytest.raises(_StopError):
                run.prune_artifacts(["requests", "items"])
        with pytest.raises(ArtifactPrunedError):
            run.results()
        run.prune_artifacts(["requests", "items"])
        assert kinds_left(world) == {"outcomes", "results"}
        assert run.refresh().record.pruned == {"requests": "done", "items": "done"}

    def test_files_that_cannot_be_removed_are_not_called_removed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk would stay full although every report says that it was emptied."""
        run = world.run(2, artifact_policy=DROP)

        def refuse(path: Path, **_: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            with pytest.raises(ArtifactError, match="cannot be removed: Permission denied"):
                run.prune_artifacts()
        assert run.refresh().record.pruned["requests"] == "begun"
        assert run.prune_artifacts().files == 1

    def test_before_the_end(self, world: World) -> None:
        """A run would lose what it still has to send."""
        run = world.open()
        run.advance()
        with pytest.raises(RunNotFinishedError):
            run.prune_artifacts(["requests"])
        run.wait()

    def test_results_that_somebody_waits_for_stay(self, world: World) -> None:
        """A partition would fail because its results were cleaned away before they were fetched."""
        run = world.run(2, artifact_policy=DROP)
        world.runner.store.claim("run-1", [member()], waiter_request(""))
        for kind in ("items", "results"):
            with pytest.raises(PruneRefusedError, match="not delivered yet"):
                run.prune_artifacts([kind])
        run.prune_artifacts(["requests"])

    def test_files_that_a_successor_reads_stay(self, world: World) -> None:
        """Answers that were paid for would be asked again by the next version of the job."""
        run = world.run(2, artifact_policy=DROP)
        changed = [*items(2), *items(3)[2:]]
        successor = world.open(changed, on_change="supersede", artifact_policy=DROP)
        with pytest.raises(PruneRefusedError, match=r"'run-1\.2' still reads"):
            run.prune_artifacts()
        successor.wait()
        run.prune_artifacts()


class TestRetention:
    def test_by_age_over_all_runs(self, world: World, tmp_path: Path) -> None:
        """Old files would pile up, or fresh ones be removed."""
        world.run(2, run_id="old", artifact_policy=DROP)
        world.run(2, run_id="unexported")
        world.clock.sleep(10 * 86_400)
        world.run(2, run_id="young", artifact_policy=DROP)
        world.open(2, run_id="open", artifact_policy=DROP).ingest()
        would = world.runner.prune_artifacts(timedelta(days=7), is_dry=True)
        done = world.runner.prune_artifacts(timedelta(days=7))
        assert would == done
        assert {each.run_id: each.refused is None for each in done} == {
            "old": True,
            "unexported": False,
        }
        assert "requests" not in kinds_left(world, "old")
        for run_id in ("unexported", "young", "open"):
            assert "requests" in kinds_left(world, run_id)
        again = world.runner.prune_artifacts(timedelta(days=7))
        assert [each.run_id for each in again] == ["unexported"]

    def test_other_namespaces_are_left_alone(self, world: World) -> None:
        """One team's clean-up would remove another's files."""
        world.run(2, artifact_policy=DROP)
        other = world.new_runner(namespace="other")
        world.clock.sleep(86_400)
        assert other.prune_artifacts(timedelta(hours=1)) == []


class _StopError(Exception):
    pass
