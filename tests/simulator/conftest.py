"""A simulator with a frozen clock, and the real SDK in front of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions

BATCH_SECONDS = 100.0


class World:
    """A simulator, a client without retries, and the steps that most tests repeat."""

    def __init__(self, simulator: Simulator) -> None:
        self.sim = simulator
        self.client = openai.OpenAI(
            base_url=simulator.openai_base_url, api_key="sk-test", max_retries=0, timeout=20
        )

    def upload(self, content: bytes, name: str = "in.jsonl") -> str:
        return self.client.files.create(file=(name, content), purpose="batch").id

    def create(self, file_id: str, run: str = "run", endpoint: Any = "/v1/responses") -> Any:
        return self.client.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,
            completion_window="24h",
            metadata={"batchor_run": run},
        )

    def submit(
        self,
        *prompts: str,
        run: str = "run",
        endpoint: str = "/v1/responses",
        token: str = "aaaaaaaa",
        **body: Any,
    ) -> Any:
        lines = [
            request_line(f"{token}-{row}", prompt, endpoint, **body)
            for row, prompt in enumerate(prompts)
        ]
        return self.create(self.upload(b"".join(lines)), run, endpoint)

    def finish(self, batch: Any) -> Any:
        """Jump to the end of the batch."""
        self.sim.advance_time(BATCH_SECONDS)
        return self.client.batches.retrieve(batch.id)

    def raw(self, file_id: str | None) -> bytes:
        return self.client.files.content(file_id).read() if file_id else b""

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw(file_id).split(b"\n") if line]

    def answers(self, *prompts: str, **options: Any) -> list[dict[str, Any]]:
        """The output lines for prompts that all succeed."""
        return self.lines(self.finish(self.submit(*prompts, **options)).output_file_id)

    def bodies(self, *prompts: str, **options: Any) -> list[dict[str, Any]]:
        return [line["response"]["body"] for line in self.answers(*prompts, **options)]


def request_line(
    custom_id: str, prompt: str, endpoint: str = "/v1/responses", **body: Any
) -> bytes:
    """One line of an input file."""
    field: dict[str, Any] = {"input": prompt}
    if endpoint == "/v1/chat/completions":
        field = {"messages": [{"role": "user", "content": prompt}]}
    request = {"model": "gpt-test", **field, **body}
    line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": request}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


Worlds = Callable[..., World]


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worlds]:
    """Makes worlds with options of the test's choice; time stands still but for jumps."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    opened: list[World] = []

    def make(**options: Any) -> World:
        settings = SimulatorOptions(**{"batch_seconds": BATCH_SECONDS, **options})
        world = World(Simulator(settings, clock=SimulatorClock(monotonic=lambda: 0.0)).__enter__())
        opened.append(world)
        return world

    yield make
    for world in opened:
        world.client.close()
        world.sim.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A world with default options."""
    return worlds()


@pytest.fixture
def line() -> Callable[..., bytes]:
    """Makes single request lines."""
    return request_line
