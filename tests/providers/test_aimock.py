"""The adapter against an independent server: aimock, written by others for other clients.

It needs Node and ``@copilotkit/aimock``: set ``BATCHOR_AIMOCK_DIR`` to a folder in which it was
installed (``npm install @copilotkit/aimock``), or install it beside this repository.
"""

import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from batchor_core.errors import ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.protocol import BatchPhase, ProviderBatch
from batchor_core.testing.provider_suite import create, read_answers, wanted

_ROOT = Path(__file__).parents[2]
_PLACES = [os.environ.get("BATCHOR_AIMOCK_DIR"), _ROOT, _ROOT.parent]
_PACKAGE = next(
    (
        package
        for place in _PLACES
        if place and (package := Path(place) / "node_modules" / "@copilotkit" / "aimock").is_dir()
    ),
    None,
)

pytestmark = pytest.mark.skipif(
    _PACKAGE is None or shutil.which("node") is None,
    reason="needs Node and @copilotkit/aimock (see BATCHOR_AIMOCK_DIR)",
)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """Run aimock."""
    assert _PACKAGE is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["node", "dist/cli.js", "-p", str(port), "-f", "fixtures"]
    with subprocess.Popen(
        command, cwd=_PACKAGE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert server.poll() is None, "aimock did not start"
            assert time.monotonic() < deadline, "aimock does not listen"
            time.sleep(0.05)
        else:
            return


DIMENSIONS = 3
"""Of all of aimock's vectors, whatever one asks for."""


@dataclass(frozen=True, kw_only=True)
class World:
    """An adapter, and how another one of the same endpoint is made."""

    provider: OpenAIProvider
    config: OpenAIProviderConfig

    def request_file(self, folder: Path) -> Path:
        """Write a request file of three lines."""
        encoder = self.provider.encoder(system_prompt=None, schema=None)
        path = folder / "requests.jsonl"
        lines = [encoder.line(f"abcdefgh-{row}", encoder.encode("hello")[1]) for row in range(3)]
        path.write_bytes(b"".join(lines))
        return path


@pytest.fixture(params=["responses", "chat", "embeddings"])
def world(base_url: str, request: pytest.FixtureRequest) -> Iterator[World]:
    """Connect an adapter at each endpoint."""
    config = OpenAIProviderConfig(
        model="gpt-4o",
        endpoint=request.param,
        dimensions=DIMENSIONS if request.param == "embeddings" else None,
        base_url=base_url,
        api_key=SecretStr("sk-aimock"),
    )
    with closing(OpenAIProvider(config)) as provider:
        yield World(provider=provider, config=config)


@contextmanager
def with_header(world: World, header: str) -> Iterator[OpenAIProvider]:
    """Connect another adapter whose every request carries a header of aimock's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_CUSTOM_HEADERS", header)
        provider = OpenAIProvider(world.config)
    with closing(provider):
        yield provider


def _ended(provider: OpenAIProvider, batch: ProviderBatch) -> ProviderBatch:
    for _ in range(5):
        batch = provider.get(batch.batch_id)
        if batch.phase is not BatchPhase.WORKING:
            break
    return batch


def test_from_upload_to_answers(world: World, tmp_path: Path) -> None:
    """Our simulator and our adapter would share a misunderstanding of the protocol."""
    provider, requests = world.provider, world.request_file(tmp_path)
    key = f"run/0/sub_{world.config.endpoint}"
    upload = provider.upload(requests, key=key)
    created = create(provider, requests, upload.ref, key=key)
    assert created.phase is BatchPhase.WORKING
    found = provider.find(wanted(upload.ref, key)).matches
    assert [batch.batch_id for batch in found] == [created.batch_id]
    batch = _ended(provider, created)
    assert batch.phase is BatchPhase.ENDED
    answers = read_answers(provider, batch, tmp_path)
    assert sorted(answers) == [f"abcdefgh-{row}" for row in range(3)]
    for answer in answers.values():
        assert answer.fault is None
        if world.config.endpoint == "embeddings":
            assert answer.vectors == [struct.pack("<3f", 0, 0, 0)]
            assert answer.input_tokens == 1
        else:
            assert answer.text
    provider.cancel(batch.batch_id)


def test_cancel(world: World, tmp_path: Path) -> None:
    """A cancelled run would never learn that its batch has ended."""
    provider, requests = world.provider, world.request_file(tmp_path)
    upload = provider.upload(requests, key="run/1/sub_y")
    batch = create(provider, requests, upload.ref, key="run/1/sub_y")
    provider.cancel(batch.batch_id)
    batch = _ended(provider, batch)
    assert (batch.phase, batch.status, batch.is_partial) == (BatchPhase.ENDED, "cancelled", True)


@pytest.mark.parametrize("outcome", ["expired", "cancelled"])
def test_a_batch_that_ends_early(world: World, tmp_path: Path, outcome: str) -> None:
    """Rows that were not executed would count as answered, or be waited for."""
    requests = world.request_file(tmp_path)
    with with_header(world, f"X-AIMock-Batch-Outcome: {outcome}") as provider:
        upload = provider.upload(requests, key="run/2/sub_z")
        batch = _ended(provider, create(provider, requests, upload.ref, key="run/2/sub_z"))
        assert (batch.phase, batch.status, batch.is_partial) == (BatchPhase.ENDED, outcome, True)
        assert read_answers(provider, batch, tmp_path) == {}


def test_a_batch_whose_rows_all_failed(world: World, tmp_path: Path) -> None:
    """Rows that failed one by one would be taken for a batch that was rejected as a whole."""
    requests = world.request_file(tmp_path)
    with with_header(world, "X-AIMock-Batch-Outcome: failed") as provider:
        upload = provider.upload(requests, key="run/3/sub_f")
        batch = _ended(provider, create(provider, requests, upload.ref, key="run/3/sub_f"))
        assert (batch.phase, batch.status) == (BatchPhase.ENDED, "failed")
        answers = read_answers(provider, batch, tmp_path)
    assert len(answers) == 3
    for answer in answers.values():
        assert answer.fault is not None
        assert (answer.fault.code, answer.fault.retryable) == ("mock_failure", True)


@pytest.mark.parametrize("chaos", ["disconnect", "malformed", "drop"])
def test_chaos_around_a_create(world: World, tmp_path: Path, chaos: str) -> None:
    """A batch whose create call went wrong would be created again unseen, and paid twice."""
    requests = world.request_file(tmp_path)
    upload = world.provider.upload(requests, key="run/4/sub_c")
    with (
        with_header(world, f"X-AIMock-Chaos-{chaos}: 1") as provider,
        pytest.raises(ProviderError) as caught,
    ):
        create(provider, requests, upload.ref, key="run/4/sub_c")
    assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME
    assert not world.provider.find(wanted(upload.ref, "run/4/sub_c")).matches


def test_what_is_not_there(world: World) -> None:
    """A lost batch would be polled for ever."""
    with pytest.raises(ProviderError) as caught:
        world.provider.get("batch_unknown")
    assert caught.value.fault.kind is FaultKind.MISSING
    world.provider.delete_remote(upload_ref="file-unknown", result=None)
