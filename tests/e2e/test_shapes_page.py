"""The page on backfills: its example is an asset, its configuration is one that Dagster takes."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from batchor_dagster import BatchRunConfig

PAGE = (Path(__file__).parents[2] / "docs" / "backfills.md").read_text()


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_example_is_an_asset() -> None:
    """A reader's first ranged asset would not load."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/backfills.md", "exec"), names)
    assert names["answers"].backfill_policy == dg.BackfillPolicy.multi_run(100)


def test_configuration_is_ours() -> None:
    """A reader would paste what the launchpad refuses."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (ops,) = (ops for ops in (yaml.safe_load(b)["ops"] for b in blocks) if "answers" in ops)
    config = ops["answers"]["config"]
    assert set(config) == set(BatchRunConfig.model_fields)
    assert BatchRunConfig(**config).preview_rows == 20
