"""The one server that all end-to-end tests look at."""

import pytest

from tests.e2e.answers_story import Story, tell


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Six backfills, told once."""
    return tell(tmp_path_factory.mktemp("answers"), tmp_path_factory.mktemp("home"))
