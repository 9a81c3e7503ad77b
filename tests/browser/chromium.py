"""A headless Chromium that a test clicks through, as the operating system's package brings it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

PATIENCE_MS = 90_000
_SIZE = {"width": 1400, "height": 900}
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # which root does not have
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It would look for updates and more at hosts that are not there.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing_for_the_browser() -> str | None:
    """Return what has to be installed before pages can be opened; None if nothing."""
    return None if shutil.which("chromium") else "no chromium (Debian: chromium)"


@contextmanager
def chromium_page() -> Iterator[Page]:
    """Start the browser with an empty profile, for the block; yields its one page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=_ARGUMENTS
        )
        try:
            page = browser.new_page(viewport=_SIZE, locale="en-US", timezone_id="UTC")
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()
