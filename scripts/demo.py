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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from demo_dagster import Backfill, DagsterClient, DagsterRefusalError
from demo_services import Service, ServiceError, dagster_dev, free_port, simulator

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".demo" / "state"
ASSETS = ("tickets", "ticket_insights", "daily_summary", "report")
BATCH_ASSET = "ticket_insights"

BATCH_SECONDS = 20.0
"""How long the simulated provider takes; a real one takes minutes to 24 hours."""

TIMEOUT_S = 600.0
_FINISHED_BATCHES = frozenset({"completed", "failed", "expired", "cancelled"})
_SHOWN_COLUMNS = ("item_id", "category", "urgency", "sentiment", "wants_refund", "summary")


class DemoError(Exception):
    """The backfill did not end as it should."""


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="leave Dagster's UI up at the end")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))  # so that children are ended
    try:
        _run(serve=arguments.serve)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    except (DemoError, DagsterRefusalError, ServiceError) as error:
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
    print(f"Backfill {backfill_id}: {', '.join(ASSETS)}; {len(partitions)} days")
    print(f"  {client.url}/runs/b/{backfill_id}\n  (Dagster looks at backfills every 30 s)\n")
    started, shown = time.monotonic(), ""
    while True:
        backfill = client.backfill(backfill_id)
        elapsed_s = time.monotonic() - started
        line = _progress_line(backfill, provider_url)
        if line != shown:
            print(f"{elapsed_s:5.0f} s  {line}", flush=True)
            shown = line
        if not backfill.is_open:
            break
        if elapsed_s > TIMEOUT_S:
            raise DemoError(f"the backfill is still {backfill.status} after {TIMEOUT_S:.0f} s")
        dagster.check()
        time.sleep(2)
    if backfill.status != "COMPLETED_SUCCESS":
        raise DemoError(f"the backfill ended as {backfill.status}: {backfill.error or 'see above'}")


def _progress_line(backfill: Backfill, provider_url: str) -> str:
    assets = []
    for name, progress in backfill.assets.items():
        text = f"{name} {progress.materialised}/{progress.targeted}"
        notes = [f"{progress.in_progress} in progress"] * bool(progress.in_progress)
        notes += [f"{progress.failed} FAILED"] * bool(progress.failed)
        assets.append(f"{text} ({', '.join(notes)})" if notes else text)
    runs = ", ".join(f"{count} {status.lower()}" for status, count in sorted(backfill.runs.items()))
    parts = [
        backfill.status.lower().replace("_", " "),
        " · ".join(assets) or "not looked at yet",
        f"provider batches: {_batches(provider_url)}",
        f"Dagster runs: {runs or 'none'}",
    ]
    return " | ".join(parts)


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
    frame = pl.scan_parquet(folder / BATCH_ASSET / "*.parquet")
    print(f"\nThe answers, as Parquet (head of {BATCH_ASSET}; the answers are simulated):")
    with pl.Config(
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        fmt_str_lengths=60,
        tbl_width_chars=140,
    ):
        print(frame.select(_SHOWN_COLUMNS).head(8).collect())
    totals = (
        frame.select(
            pl.len().alias("rows"),
            (pl.col("batch_status") == "ok").sum().alias("ok"),
            pl.col("batch_input_tokens").sum().alias("input"),
            pl.col("batch_output_tokens").sum().alias("output"),
            pl.col("batch_cost_usd").sum().alias("cost"),
            pl.col("batch_model").drop_nulls().first().alias("model"),
        )
        .collect()
        .row(0, named=True)
    )
    saving = client.metadata_sum(BATCH_ASSET, "batchor/saving_usd")
    print(
        f"{totals['rows']} rows, {totals['ok']} answered; {totals['input']:,} input and "
        f"{totals['output']:,} output tokens.\nAt {totals['model']}'s batch price: "
        f"${totals['cost']:.4f}, ${saving:.4f} less than in real time. (Simulated: tokens are "
        "estimated, nothing was billed.)"
    )
    print(f"\nParquet files: {folder}")
    for path in sorted(folder.rglob("*.parquet")):
        print(f"  {path.relative_to(folder)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
