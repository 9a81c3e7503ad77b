"""The examples of the page on components load together, and its tables name every field."""

import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from batchor_dagster import BatchAssetComponent, BatchorComponent
from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.asset.options import OptionsWithDefaults, options_in
from tests.dagster.dg_project import DgProject, open_project

PAGE = (Path(__file__).parents[2] / "docs" / "component.md").read_text()

RAW = '''
"""The upstream asset that the examples read."""
import dagster as dg

@dg.asset(key=["reviews", "raw"], partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
def raw() -> None: ...
'''


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DgProject]:
    """An empty project."""
    with open_project(tmp_path / "project") as opened:
        yield opened


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore:Parameter `owners`:dagster.BetaWarning")
def test_examples_are_one_project(project: DgProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader would copy an example that does not load."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "SHOP_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    project.write("defs/raw.py", RAW)
    (code,) = _blocks("python")
    project.write("components.py", code)
    for index, text in enumerate(_blocks("yaml")):
        project.write(f"defs/example_{index}/defs.yaml", text.replace("my_project", "PROJECT"))
    definitions = project.load()
    dg.Definitions.validate_loadable(definitions)

    declared = declarations_of(definitions.assets or ())
    assert declared.keys() == {"reviews/sentiment", "letters", "products", "reviews/summary"}
    assert declared["letters"].provider == "claude"
    assert declared["products"].dimensions == 256
    (summary,) = definitions.resolve_assets_def(dg.AssetKey(["reviews", "summary"])).specs
    assert summary.tags["model"] == "gpt-4.1-mini"


@pytest.mark.parametrize("component", [BatchorComponent, BatchAssetComponent])
def test_tables_name_every_field(component: type[dg.Model]) -> None:
    """A reader would not learn of a field, or would use one that there is not."""
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    elsewhere = {option.name for option in options_in(OptionsWithDefaults)}
    assert component.model_fields.keys() - elsewhere <= named
    known = BatchorComponent.model_fields.keys() | BatchAssetComponent.model_fields.keys()
    of_sources = {"asset", "path", "database", "query"}
    assert named <= known | of_sources
