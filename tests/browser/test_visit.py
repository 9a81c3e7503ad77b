"""What a user sees who clicks through Dagster's UI in a real browser."""

import re
from pathlib import Path

import pytest

from tests.browser.story import A_DAY, Story
from tests.browser.user import backfill_counts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ASSETS = ("tickets", "ticket_insights", "daily_summary")


def test_x(story: Story) -> None:
    """x."""
    for name, text in story.pages.items():
        print("=====", name)
        print(text)
    print(story.plot_width, story.executed)
