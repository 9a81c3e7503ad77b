"""How many rows a second the simulator answers: `python benchmarks/simulator_throughput.py 200000`.

Uploads batches of 50,000 rows with prompts of 300 bytes and a small schema, jumps to their end,
and prints the rates of upload, execution (validation, answers, ledger) and download, the time the
ledger takes to group, and the peak resident memory.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import msgspec
import openai

from batchor_core.simulator import Simulator, SimulatorOptions

_SCHEMA = {
    "type": "object",
    "properties": {
        "category": {"type": "string", "enum": ["billing", "bug", "feature_request", "account"]},
        "urgency": {"type": "integer", "minimum": 1, "maximum": 5},
        "summary": {"type": "string"},
    },
    "required": ["category", "urgency", "summary"],
    "additionalProperties": False,
}


def write_requests(path: Path, first: int, count: int) -> None:
    """Write an input file."""
    encode = msgspec.json.Encoder().encode
    text = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": _SCHEMA}}
    with path.open("wb") as handle:
        for row in range(first, first + count):
            prompt = f"Ticket {row}: I was billed twice. " + "Please look into it. " * 13
            body = {"model": "gpt-4.1-mini", "input": prompt, "text": text}
            line = {"custom_id": f"t-{row}", "method": "POST", "url": "/v1/responses", "body": body}
            handle.write(encode(line) + b"\n")


def report(what: str, rows: int, started: float) -> None:
    """Print a rate."""
    seconds = time.perf_counter() - started
    print(f"{what:<10} {rows / seconds:>10,.0f} rows/s  ({seconds:.1f} s)")


def run(rows: int, chunk: int, folder: Path) -> None:
    """Measure one job of `rows` rows."""
    options = SimulatorOptions(batch_seconds=50_000, spool_dir=folder)
    path = folder / "in.jsonl"
    with (
        Simulator(options) as simulator,
        openai.OpenAI(base_url=simulator.openai_base_url, api_key="sk-test") as client,
    ):
        started = time.perf_counter()
        generating_s = 0.0
        batches = []
        for first in range(0, rows, chunk):
            before = time.perf_counter()
            write_requests(path, first, min(chunk, rows - first))
            generating_s += time.perf_counter() - before
            with path.open("rb") as handle:
                file = client.files.create(
                    file=("in.jsonl", handle, "application/jsonl"), purpose="batch"
                )
            batch = client.batches.create(
                input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
            )
            batches.append(batch.id)
        report("upload", rows, started + generating_s)
        simulator.advance_time(options.batch_seconds + 1)
        started = time.perf_counter()
        done = [client.batches.retrieve(batch) for batch in batches]
        report("execution", rows, started)
        assert all(batch.status == "completed" for batch in done)
        started = time.perf_counter()
        for batch in done:
            with client.files.with_streaming_response.content(batch.output_file_id or "") as body:
                body.stream_to_file(folder / "out.jsonl")
        report("download", rows, started)
        started = time.perf_counter()
        summary = simulator.ledger().summary()
        report("ledger", rows, started)
        assert summary["distinct"] == rows
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak resident memory {peak_kib / 1024:,.0f} MiB (client and simulator in one process)")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=100_000)
    parser.add_argument("--chunk", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(arguments.rows, arguments.chunk, Path(folder))


if __name__ == "__main__":
    main()
