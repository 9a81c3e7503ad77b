"""Shows the example project at work: one backfill, from the request to the Parquet files.

Run by ``scripts/demo``, in an environment that has the package and the example.
"""

import argparse
import json
import shutil
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from demo_dagster import AssetProgress, Backfill, DagsterClient, DagsterRefusalError
from demo_services import Service, ServiceError, dagster_dev, free_port, simulator

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".demo" / "state"
ASSETS = ("tickets", "ticket_insights", "reply_drafts", "daily_summary", "report")
BATCH_ASSET = "ticket_insights"

BATCH_SECONDS = 20.0
"""How long the simulated provider takes; a real one takes minutes to 24 hours."""

TIMEOUT_S = 600.0
_FINISHED_BATCHES = frozenset({"completed", "failed", "expired", "cancelled"})


class DemoError(Exception):
    """The backfill did not end as it should."""


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="leave Dagster's UI up at the end")
    arguments = parser.parse_args()
    # However it is told to stop, children are ended; SIGINT is ignored in a shell's background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    try:
        _run(serve=arguments.serve)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    except (DemoError, DagsterRefusalError, ServiceError, OSError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _run(*, serve: bool) -> None:
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(parents=True)
    started = time.monotonic()
    port = free_port()
    client = DagsterClient(f"http://127.0.0.1:{port}")
    print("Starting a simulated provider (no model is involved, nothing is billed) and Dagster …")
    with (
        simulator(STATE, batch_seconds=BATCH_SECONDS) as provider_url,
        dagster_dev(STATE, port=port, env=_environment(provider_url)) as dagster,
    ):
        dagster.wait_until(client.is_loaded)
        print(f"  provider   {provider_url}\n  Dagster    {client.url}\n")
        with _log_on_failure(dagster):
            _backfill(client, dagster, provider_url)
        _show_results(client)
        print(f"\nThe whole demo took {time.monotonic() - started:.0f} s.")
        if serve:
            print(f"Dagster's UI stays up at {client.url} (Ctrl-C ends everything).", flush=True)
            while True:
                time.sleep(1)
                dagster.check()


def _environment(provider_url: str) -> dict[str, str]:
    """Return what the example reads, with a user's intervals shortened."""
    return {
        "OPENAI_BASE_URL": provider_url,
        "OPENAI_API_KEY": "simulated",
        "SUPPORT_TICKETS_HOME": str(STATE / "support_tickets"),
        "SUPPORT_TICKETS_SENSOR_SECONDS": "5",
        "SUPPORT_TICKETS_POLL_SECONDS": "3",
    }


@contextmanager
def _log_on_failure(dagster: Service) -> Iterator[None]:
    try:
        yield
    except DemoError as error:
        raise DemoError(f"{error}\nThe end of {dagster.log}:\n{dagster.log_tail()}") from error


def _backfill(client: DagsterClient, dagster: Service, provider_url: str) -> None:
    """Launch a backfill of everything and follow it to its end."""
    partitions = client.partition_keys(BATCH_ASSET)
    backfill_id = client.launch_backfill(ASSETS, partitions)
    print(f"Backfill {backfill_id} of {len(partitions)} days: {client.url}/runs/b/{backfill_id}")
    print("Materialized of all, +in progress, !failed. Dagster looks at backfills every 30 s.\n")
    print(_table_line("time", "backfill", ASSETS, "provider batches", "Dagster runs"))
    started, shown = time.monotonic(), ""
    while True:
        backfill = client.backfill(backfill_id)
        elapsed_s = time.monotonic() - started
        state = _state_line("", backfill, provider_url)
        if state != shown:
            print(_state_line(f"{elapsed_s:.0f} s", backfill, provider_url), flush=True)
            shown = state
        if not backfill.is_open:
            break
        if elapsed_s > TIMEOUT_S:
            raise DemoError(f"the backfill is still {backfill.status} after {TIMEOUT_S:.0f} s")
        dagster.check()
        time.sleep(2)
    if backfill.status != "COMPLETED_SUCCESS":
        reasons = [backfill.error] if backfill.error else client.failures(backfill_id)
        raise DemoError("\n  ".join([f"the backfill ended as {backfill.status}", *reasons]))


def _state_line(elapsed: str, backfill: Backfill, provider_url: str) -> str:
    cells = [_asset_cell(backfill.assets.get(name)) for name in ASSETS]
    status = "in progress" if backfill.is_open else backfill.status.removeprefix("COMPLETED_")
    return _table_line(
        elapsed, status.lower(), cells, _batches(provider_url), _runs_text(backfill.runs)
    )


def _asset_cell(progress: AssetProgress | None) -> str:
    if progress is None:
        return "-"
    text = f"{progress.materialized}/{progress.targeted}"
    text += f" +{progress.in_progress}" if progress.in_progress else ""
    return text + (f" !{progress.failed}" if progress.failed else "")


def _runs_text(runs: Mapping[str, int]) -> str:
    """Return how many Dagster runs there are, in a reader's words and order."""
    words = {
        "queued": ("NOT_STARTED", "QUEUED"),
        "started": ("STARTING", "STARTED", "CANCELING"),
        "done": ("SUCCESS",),
        "FAILED": ("FAILURE", "CANCELED"),
        "hold": ("HOLD",),
    }
    counts = {word: sum(runs.get(s, 0) for s in statuses) for word, statuses in words.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none"


def _table_line(time: str, status: str, assets: Sequence[str], batches: str, runs: str) -> str:
    widths = [max(len(name), 8) for name in ASSETS]
    cells = "  ".join(f"{text:<{width}}" for text, width in zip(assets, widths, strict=True))
    return f"{time:>6}  {status:<11}  {cells}  {batches:<18}  {runs}"


def _batches(provider_url: str) -> str:
    """Return how many batches the provider has, as it tells everybody."""
    request = urllib.request.Request(  # noqa: S310 - our own http:// address
        f"{provider_url}/batches?limit=100", headers={"Authorization": "Bearer simulated"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        batches = json.load(response)["data"]
    done = Counter(batch["status"] in _FINISHED_BATCHES for batch in batches)
    return f"{done[False]} working, {done[True]} done" if batches else "none"


def _show_results(client: DagsterClient) -> None:
    folder = STATE / "support_tickets" / "results"
    answers = pl.scan_parquet(folder / BATCH_ASSET / "*.parquet")
    print(f"\nThe head of {BATCH_ASSET}, as it lies in Parquet (the answers are simulated):")
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(_readable(answers.head(8)).collect())
    _show_cost(answers, client.metadata_sum(BATCH_ASSET, "batchor/saving_usd"))
    print(f"\nParquet files in {folder}:")
    for name in ASSETS:
        paths = sorted(folder.glob(f"{name}.parquet")) + sorted(folder.glob(f"{name}/*.parquet"))
        names = [str(path.relative_to(folder)) for path in paths]
        shown = names if len(names) < 3 else [names[0], "…", names[-1]]
        print(f"  {' '.join(shown)}")


def _readable(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Return the columns that fit on a screen, with the names of the products only."""
    products = (
        pl.col("products")
        .list.eval(pl.element().struct.field("name"))
        .list.unique(maintain_order=True)
    )
    return answers.select(
        "item_id", "channel", "customer_plan", "category", "urgency", products.list.join(", ")
    )


def _show_cost(answers: pl.LazyFrame, saving_usd: float) -> None:
    totals = answers.select(
        pl.len().alias("rows"),
        (pl.col("batch_status") == "ok").sum().alias("ok"),
        pl.col("batch_input_tokens").sum().alias("input"),
        pl.col("batch_output_tokens").sum().alias("output"),
        pl.col("batch_cost_usd").sum().alias("cost_usd"),
        pl.col("batch_model").drop_nulls().first().alias("model"),
    )
    row = totals.collect().row(0, named=True)
    print(
        f"{row['ok']} of {row['rows']} rows answered with {row['input']:,} input and "
        f"{row['output']:,} output tokens:\n${row['cost_usd']:.4f} at the batch price of "
        f"{row['model']}, where real time would cost ${row['cost_usd'] + saving_usd:.4f} "
        f"(${saving_usd:.4f} saved).\nTokens are simulated too; nothing was billed."
    )


if __name__ == "__main__":
    sys.exit(main())
