"""What somebody does in Dagster's UI, by roles and visible texts, and what is there to be read.

Nothing here asks Dagster in another way: what the pages do not show is not known.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error, Locator, Page

RELOAD_MS = 20_000
"""After so long without what is waited for, a user would reload the page."""

_IS_AT_REST = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const isBusy = /^(Loading|Checking config)/.test(texts.currentNode.data);
    if (isBusy && texts.currentNode.parentElement.checkVisibility({opacityProperty: true}))
      return false;
  }
  return true;
}"""
_LOAD_ICONS = """async () => {
  const icons = new Set();
  for (const element of document.querySelectorAll("*")) {
    const found = /url\\("(.+?)"\\)/.exec(getComputedStyle(element).maskImage);
    if (found) icons.add(found[1]);
  }
  const load = url => Object.assign(new Image(), {src: url}).decode().catch(() => {});
  await Promise.all([...icons].map(load));
}"""
_MATCHES = "pattern => new RegExp(pattern).test(document.body.innerText)"


@dataclass(kw_only=True)
class User:
    """Somebody in front of the UI.

    Attributes:
        page: The browser's page.
        url: Of the webserver.
        pictures: The folder that pictures of the page go to.
        backfill_url: The page of the backfill that was launched last.
    """

    page: Page
    url: str
    pictures: Path
    backfill_url: str = ""

    def read(self, pattern: str, timeout_s: float = 120.0) -> str:
        """Wait until the page has a text, reloading it now and then; returns all its text.

        Args:
            pattern: A regular expression, as JavaScript reads it.
            timeout_s: How long to wait.

        Raises:
            AssertionError: It does not come; the message has what is there instead.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.page.wait_for_function(_MATCHES, arg=pattern, timeout=RELOAD_MS, polling=250)
            except Error:
                text = self.page.inner_text("body")
                assert time.monotonic() < deadline, f"no {pattern!r} in:\n{text}"
                self.page.reload()
            else:
                return self.page.inner_text("body")

    def take_picture(self, name: str) -> None:
        """Keep what is seen now, when nothing of it is still being loaded."""
        self.page.mouse.move(700, 890)  # away from what shows a tip
        self._wait_until_at_rest()
        self.page.evaluate(_LOAD_ICONS)
        self.page.screenshot(path=self.pictures / f"{name}.png", animations="disabled")

    def scroll_to(self, text: str, block: str = "start") -> None:
        """Scroll until a text is at the start, the center or the end of what is seen."""
        shown = self.page.get_by_text(text, exact=True).first
        shown.evaluate("(element, block) => element.scrollIntoView({block})", block)

    def open_lineage(self, pattern: str) -> str:
        """Go to the graph of all assets from wherever one is; returns all text of the page."""
        self.page.get_by_role("link", name="lineage Lineage", exact=True).click()
        self.read(pattern)
        self._wait_until_at_rest()
        return self.page.inner_text("body")

    def choose_days(self, first: str, last: str, picture: str) -> None:
        """Open the dialog of *Materialize all* and choose days."""
        self.page.get_by_role("button", name="Materialize all").click()
        days = self.page.get_by_role("dialog").get_by_role("textbox").first
        days.fill(f"[{first}...{last}]")
        days.press("Tab")
        self.read(r"\n3 partitions\n")
        self.take_picture(picture)

    def launch_backfill(self) -> None:
        """Launch what the dialog says, and go to the backfill's page."""
        self.page.get_by_role("dialog").get_by_role("button", name="Launch backfill").click()
        self.page.get_by_role("link", name="View", exact=True).click()
        self.page.wait_for_url("**/runs/b/*")
        self.backfill_url = self.page.url

    def open_asset(self, asset: str) -> None:
        """Go to an asset's page, by its address."""
        self.page.goto(f"{self.url}/assets/{asset}")
        self.tab("Overview").wait_for()

    def tab(self, name: str) -> Locator:
        """Return a tab of the page, by its title."""
        return self.page.get_by_role("tab", name=name, exact=True).first

    def open_tab(self, name: str, pattern: str, timeout_s: float = 120.0) -> str:
        """Click a tab and wait for a text; returns all text of the page."""
        self.tab(name).click()
        return self.read(pattern, timeout_s)

    def set_up_dry_run(self, day: str) -> str:
        """Open the launchpad of the asset's page, choose a day and ask for a dry run."""
        self.page.get_by_role("button", name="Materialize…").click(modifiers=["Shift"])
        pad = self.page.get_by_role("dialog").filter(has_text="Launchpad")
        self.read(r"No errors")  # until then, it draws itself anew
        pad.get_by_placeholder("Partition").click()
        self.page.get_by_role("menuitem", name=day).click()
        line = pad.locator(".CodeMirror-line").filter(has_text="dry_run")
        line.get_by_text("false", exact=True).dblclick()
        self.page.keyboard.type("true")
        line.get_by_text("true", exact=True).wait_for()
        pad.get_by_text(f"partition: {day}").wait_for()
        pad.get_by_role("button", name="open_in_new").click(trial=True)  # once it may be
        return self.read(r"No errors")

    def launch_run(self) -> None:
        """Launch what the launchpad says, and go to the run's page."""
        self.page.get_by_role("dialog").get_by_role("button", name="open_in_new").click()
        self.page.wait_for_url(re.compile("/runs/[0-9a-f-]{36}"))

    def _wait_until_at_rest(self) -> None:
        self.page.wait_for_function(_IS_AT_REST, polling=250)
