"""One visit to the example project in a real browser, from the lineage to the last result.

The provider's clock stands still until what can be seen in the meantime has been read.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from batchor_core.simulator import Simulator
from tests.browser.chromium import chromium_page
from tests.browser.user import User
from tests.e2e.dagster_dev import REPOSITORY_ROOT, DagsterDev
from tests.e2e.still_provider import provider_env, still_provider

FIRST_DAY, A_DAY, LAST_DAY = "2026-11-01", "2026-11-02", "2026-11-03"
BATCH_SECONDS = 600.0
_ONLY_THE_HOLD_IS_LEFT = (
    r"^(?![\s\S]*\n(Starting|Started)\n)(?![\s\S]*\nQueued\n[\s\S]*\nQueued\n)"
    r"(?=[\s\S]*batchor/kind: hold)[\s\S]*(\nSuccess\n[\s\S]*){4}"
)
_YAML = "nux:\n  enabled: false\n"  # no dialog that asks for an address


@dataclass(kw_only=True)
class Story:
    """What was there to be read, in the order of the visit.

    Attributes:
        pages: All text of a page, by what was looked at.
        plots: How many plots are drawn of the asset's metadata.
        plot_width: Width of the picture in the report's metadata, in pixels of its own.
        executed: How many requests the provider had executed before and after the dry run.
    """

    pages: dict[str, str] = field(default_factory=dict)
    plots: int = 0
    plot_width: int = 0
    executed: tuple[int, int] = (0, 0)


def tell(pictures: Path) -> Story:
    """Visit the example project; its pictures go to a folder."""
    story = Story()
    with (
        still_provider(BATCH_SECONDS) as simulator,
        _example(simulator) as dev,
        chromium_page() as page,
    ):
        user = User(page=page, url=f"http://127.0.0.1:{dev.port}", pictures=pictures)
        page.goto(user.url)
        _launch(user, story)
        _look_at_what_waits(user, story)
        simulator.advance_time(BATCH_SECONDS)
        _read_results(user, story)
        _read_the_end(user, story)
        before = simulator.ledger().executed()
        _estimate(user, story)
        story.executed = before, simulator.ledger().executed()
    return story


@contextmanager
def _example(simulator: Simulator) -> Iterator[DagsterDev]:
    """Serve the example project; its files are in a folder whose name may be seen in pictures."""
    sources = str(REPOSITORY_ROOT / "example_project" / "src")
    with tempfile.TemporaryDirectory(prefix="support_tickets-") as folder:
        env = {
            **provider_env(simulator),
            "SUPPORT_TICKETS_HOME": folder,
            "SUPPORT_TICKETS_SENSOR_SECONDS": "5",
            "SUPPORT_TICKETS_POLL_SECONDS": "2",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY_ROOT), sources]),
        }
        with DagsterDev(
            target=["-m", "support_tickets.definitions"], env=env, extra_yaml=_YAML
        ) as dev:
            yield dev


def _launch(user: User, story: Story) -> None:
    story.pages["lineage"] = user.open_lineage(r"(% filled[\s\S]*){4}")
    user.choose_days(FIRST_DAY, LAST_DAY, picture="launch")
    user.launch_backfill()


def _look_at_what_waits(user: User, story: Story) -> None:
    waiting = "\\n0% completed\\n3\\n3\\n"
    both = rf"\nreply_drafts{waiting}[\s\S]*\nticket_insights{waiting}"
    story.pages["backfill waiting"] = user.read(both)
    user.take_picture("backfill-waiting")
    story.pages["runs waiting"] = user.open_tab("Runs", _ONLY_THE_HOLD_IS_LEFT)
    user.take_picture("runs-waiting")
    user.open_asset("ticket_insights")
    story.pages["partitions waiting"] = user.open_tab("Partitions", r"Materializing \(3\)")
    user.take_picture("partitions-waiting")
    story.pages["progress"] = user.open_tab("Events", r"batchor/progress_rows_in_flight")
    user.take_picture("progress")


def _read_results(user: User, story: Story) -> None:
    story.pages["partition"] = _read_a_day(user)
    user.scroll_to("batchor/preview", "center")
    user.take_picture("partition")
    described = r"The main reason for writing[\s\S]*batchor/cost_usd"
    story.pages["columns"] = user.open_tab("Overview", described)
    user.take_picture("columns")
    user.page.get_by_role("button", name="Plots").click()
    story.pages["plots"] = user.read(r"batchor/cost_usd")
    user.scroll_to("Metadata")
    user.page.locator("canvas").first.wait_for()
    story.plots = user.page.locator("canvas").count()
    user.take_picture("plots")
    story.pages["checks"] = user.open_tab("Checks", r"(\nSucceeded\n[\s\S]*){3}\nPassed\n")
    user.page.locator("canvas").first.wait_for()
    user.take_picture("checks")


def _read_a_day(user: User) -> str:
    user.open_tab("Partitions", r"Materialized \(3\)")
    user.page.get_by_text(A_DAY, exact=True).first.click()
    return user.read(r"batchor/cost_usd[\s\S]*batchor/preview[\s\S]*wants_refund")


def _read_the_end(user: User, story: Story) -> None:
    user.page.get_by_role("link", name="runs Runs", exact=True).click()
    user.page.get_by_role("link", name="Backfills").or_(user.tab("Backfills")).first.click()
    user.read(r"3 partitions")
    user.page.goto(user.backfill_url)  # the list is drawn anew under a click
    story.pages["backfill done"] = user.read(r"Status\n(Succeeded|Failed|Canceled)")
    user.take_picture("backfill-done")
    user.open_asset("report")
    story.pages["report"] = user.read(r"plot\s")
    user.page.get_by_text("Show Markdown").last.click()
    plot = user.page.get_by_role("img", name="Tickets by category")
    story.plot_width = plot.evaluate("picture => picture.decode().then(() => picture.naturalWidth)")
    user.take_picture("report")
    user.page.get_by_role("button", name="Close").click()
    # For some seconds it may show what it showed before.
    story.pages["lineage done"] = user.open_lineage(
        r"^(?=[\s\S]*\nMaterialized)([\s\S]*3 / 3 P){2}"
    )
    user.take_picture("lineage")


def _estimate(user: User, story: Story) -> None:
    user.open_asset("ticket_insights")
    story.pages["launchpad"] = user.set_up_dry_run(A_DAY)
    user.take_picture("launchpad")
    user.launch_run()
    user.read(r"RUN_SUCCESS")
    user.open_asset("ticket_insights")
    story.pages["estimate"] = user.open_tab("Events", r"batchor/estimated_cost_usd")
    user.take_picture("estimate")
    story.pages["partition after the dry run"] = _read_a_day(user)
