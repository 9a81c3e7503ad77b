"""The one visit that all tests of the browser look back at."""

import os
from pathlib import Path

import pytest

from tests.browser.chromium import missing_for_the_browser
from tests.browser.story import Story, tell
from tests.e2e.dagster_dev import REPOSITORY_ROOT

PICTURES = REPOSITORY_ROOT / "docs" / "pictures"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: those of the docs are replaced only on demand."""
    if os.environ.get("BATCHOR_UPDATE_PICTURES") == "1":
        return PICTURES
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="session")
def story(pictures: Path) -> Story:
    """One visit to the example project."""
    missing = missing_for_the_browser()
    if missing:
        pytest.skip(missing)
    return tell(pictures)
