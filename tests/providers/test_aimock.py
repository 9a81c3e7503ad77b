"""The adapter against an independent server: aimock, written by others for other clients.

It needs Node and ``@copilotkit/aimock``: set ``BATCHOR_AIMOCK_DIR`` to a folder in which it was
installed (``npm install @copilotkit/aimock``), or install it beside this repository.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from batchor_core.errors import ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.openai.requests import ResponsesEncoder
from batchor_core.providers.protocol import BatchPhase
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


@pytest.fixture
def provider(base_url: str) -> Iterator[OpenAIProvider]:
    """Connect the adapter."""
    config = OpenAIProviderConfig(model="gpt-4o", base_url=base_url, api_key=SecretStr("sk-aimock"))
    provider = OpenAIProvider(config)
    yield provider
    provider.close()


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Write a request file of three lines."""
    config = OpenAIProviderConfig(model="gpt-4o")
    encoder = ResponsesEncoder(config, host="h", system_prompt=None, schema=None)
    path = tmp_path / "requests.jsonl"
    lines = [encoder.line(f"abcdefgh-{row}", encoder.encode("hello")[1]) for row in range(3)]
    path.write_bytes(b"".join(lines))
    return path


def test_from_upload_to_answers(provider: OpenAIProvider, requests: Path, tmp_path: Path) -> None:
    """Our simulator and our adapter would share a misunderstanding of the protocol."""
    upload = provider.upload(requests, key="run/0/sub_x")
    created = create(provider, requests, upload.ref, key="run/0/sub_x")
    assert created.phase is BatchPhase.WORKING
    found = provider.find(wanted(upload.ref, "run/0/sub_x")).matches
    assert [batch.batch_id for batch in found] == [created.batch_id]
    batch = created
    for _ in range(5):
        batch = provider.get(created.batch_id)
        if batch.phase is not BatchPhase.WORKING:
            break
    assert batch.phase is BatchPhase.ENDED
    answers = read_answers(provider, batch, tmp_path)
    assert sorted(answers) == [f"abcdefgh-{row}" for row in range(3)]
    assert all(answer.text and answer.fault is None for answer in answers.values())
    provider.cancel(batch.batch_id)


def test_cancel(provider: OpenAIProvider, requests: Path) -> None:
    """A cancelled run would never learn that its batch has ended."""
    upload = provider.upload(requests, key="run/1/sub_y")
    batch: Any = create(provider, requests, upload.ref, key="run/1/sub_y")
    provider.cancel(batch.batch_id)
    for _ in range(5):
        batch = provider.get(batch.batch_id)
    assert batch.phase is BatchPhase.ENDED
    assert batch.status == "cancelled"


def test_what_is_not_there(provider: OpenAIProvider) -> None:
    """A lost batch would be polled for ever."""
    with pytest.raises(ProviderError) as caught:
        provider.get("batch_unknown")
    assert caught.value.fault.kind is FaultKind.MISSING
    provider.delete_remote(upload_ref="file-unknown", result=None)
