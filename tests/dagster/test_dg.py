"""The ``dg`` command line, as a user types it, in a fresh project."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.dagster.dg_project import DgProject, open_project

DG = Path(sys.executable).with_name("dg")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DgProject]:
    """An empty project."""
    with open_project(tmp_path / "shop") as opened:
        yield opened


def dg(project: DgProject, *arguments: str, fails: bool = False) -> str:
    """Run a command in the project's folder; return all that it prints."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, ["src", os.environ.get("PYTHONPATH")])),
        "PYTHONWARNINGS": "ignore",
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DG_CLI_CONFIG": str(project.root / "no-user-config.toml"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    finished = subprocess.run(
        [DG, *arguments],
        cwd=project.root,
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=110,
    )
    assert (finished.returncode != 0) == fails, finished.stdout
    return finished.stdout


def test_components_are_listed(project: DgProject) -> None:
    """``dg`` would not know our components, or fail for every command since it cannot read them."""
    listed = dg(project, "list", "components")
    assert "batchor_dagster.BatchAssetComponent" in listed
    assert "batchor_dagster.BatchorComponent" in listed
    assert "An asset whose rows are answered by an LLM" in listed


def test_scaffolded_files_are_a_project_that_loads(project: DgProject) -> None:
    """A user would begin by mending what we wrote for them."""
    dg(project, "scaffold", "defs", "batchor_dagster.BatchorComponent", "batchor")
    dg(project, "scaffold", "defs", "batchor_dagster.BatchAssetComponent", "my_batch")

    assert (project.defs / "my_batch" / "rows.csv").exists()
    assert "validated successfully" in dg(project, "check", "yaml")
    assert "loaded successfully" in dg(project, "check", "defs")
    listed = dg(project, "list", "defs")
    for name in (
        "my_batch",
        "batchor_advance ",
        "batchor_advance_sensor",
        "batchor_materialize_sensor",
        "io_manager",
        "openai",
    ):
        assert name in listed


def test_scaffolds_for_another_provider(project: DgProject) -> None:
    """Only users of one provider would get files that work."""
    options = ["--provider", "anthropic"]
    for kind, name in (("BatchorComponent", "batchor"), ("BatchAssetComponent", "my_batch")):
        dg(project, "scaffold", "defs", f"batchor_dagster.{kind}", name, *options)
    written = yaml.safe_load((project.defs / "my_batch" / "defs.yaml").read_text())
    assert written["attributes"]["provider"] == "anthropic"
    assert [asset.key.to_user_string() for asset in project.load().resolve_all_asset_specs()] == [
        "my_batch"
    ]


def test_scaffolds_python_where_it_is_asked_for(project: DgProject) -> None:
    """A user who wants Python would get YAML."""
    kind = "batchor_dagster.BatchAssetComponent"
    dg(project, "scaffold", "defs", kind, "my_batch", "--format", "python")
    text = (project.defs / "my_batch" / "component.py").read_text()
    assert "def load(context: dg.ComponentLoadContext) -> BatchAssetComponent" in text
    assert not (project.defs / "my_batch" / "defs.yaml").exists()


def test_wrong_yaml_is_refused_with_the_line(project: DgProject) -> None:
    """A user would search a stack trace for a typing error."""
    project.component(
        "my_batch",
        "batchor_dagster.BatchAssetComponent",
        """
        asset: {key: my_batch}
        source: {path: rows.csv}
        llm_model: gpt-4.1-mini
        temperature: 0
        partitions: {type: yearly, start_date: x}
        """,
    )
    told = dg(project, "check", "yaml", fails=True)
    assert "defs.yaml:6" in told
    assert "'temperature' was unexpected" in told
    assert "defs.yaml:7" in told
    assert "Traceback" not in told
