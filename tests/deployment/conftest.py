"""The servers that the deployment tests look at, one after the other."""

import pytest

from tests.deployment import settings_story, shared_story


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> shared_story.SharedStory:
    """One backfill per code location, on services that machines share."""
    return shared_story.tell(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> settings_story.SettingsStory:
    """Two backfills under run retries and a queue that does not look at pools."""
    return settings_story.tell(tmp_path_factory.mktemp("settings"))
