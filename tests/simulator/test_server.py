"""Starting and stopping, and the clock."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions, serve
from batchor_core.simulator.openai.requests import raw_lines


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "::"])
def test_loopback_only(host: str) -> None:
    """Broken if others on the network could take the simulator for a provider."""
    with pytest.raises(ValueError, match="loopback"):
        serve(host)
    with pytest.raises(ValueError, match="loopback"):
        Simulator(host=host)


def test_taken_port() -> None:
    """Broken if a taken port were not an error at once, or leaked a socket."""
    with Simulator() as simulator:
        port = int(simulator.base_url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="in use"):
            Simulator(port=port)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Broken if a stopped simulator left files, a thread or a bound port."""
    with Simulator(SimulatorOptions(spool_dir=tmp_path / "spool")) as simulator:
        assert list((tmp_path / "spool").iterdir())
        port = int(simulator.base_url.rsplit(":", 1)[1])
    assert not list((tmp_path / "spool").iterdir())
    assert "batchor-simulator" not in [thread.name for thread in threading.enumerate()]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    simulator.close()


def test_never_started() -> None:
    """Broken if a simulator that was made but not entered could not be closed."""
    Simulator().close()


def test_two_at_a_time_share_nothing(worlds: Any) -> None:
    """Broken if one simulator answered for the ids of another, or of its predecessor."""
    first, second = worlds(), worlds()
    assert first.submit("a").id != second.submit("a").id
    assert len(first.client.batches.list().data) == 1


def test_serve_blocks_until_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken if `serve` did not bind, answer, and clean up when it is stopped."""
    servers = []
    make = serve.__globals__["_server"]
    monkeypatch.setitem(
        serve.__globals__, "_server", lambda app: servers.append(make(app)) or servers[0]
    )
    ready: list[str] = []
    bound = threading.Event()

    def note(url: str) -> None:
        ready.append(url)
        bound.set()

    thread = threading.Thread(target=serve, kwargs={"on_ready": note})
    thread.start()
    assert bound.wait(10)
    with httpx2.Client(trust_env=False) as http:
        health = http.get(f"{ready[0]}/_sim/health").json()
    assert health["simulator"] == "no model was involved"
    servers[0].should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_signals_end_it_cleanly(tmp_path: Path, how: signal.Signals, code: int) -> None:
    """Broken if a stopped command left its files behind."""
    program = (
        "import pathlib, sys; from batchor_core.simulator import SimulatorOptions, serve;"
        "serve(options=SimulatorOptions(spool_dir=pathlib.Path(sys.argv[1])),"
        " on_ready=lambda url: print(url, flush=True))"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as child:
        assert child.stdout is not None
        url = child.stdout.readline().decode().strip()
        with httpx2.Client(trust_env=False) as http:
            assert http.get(f"{url}/_sim/health").status_code == 200
        child.send_signal(how)
        assert child.wait(20) == code
    assert list(tmp_path.iterdir()) == []


def test_time_jumps_over_http(world: Any) -> None:
    """Broken if another process could not make batches finish at once."""
    batch = world.submit("a")
    url = f"{world.sim.base_url}/_sim/advance"
    before = world.client._client.post(url, json={"seconds": 0}).json()
    after = world.client._client.post(url, json={"seconds": 100}).json()
    assert after["unix"] - before["unix"] == after["now"] - before["now"] == 100
    assert world.client.batches.retrieve(batch.id).status == "completed"
    for nonsense in ({"seconds": -1}, {}, [], {"seconds": "soon"}):
        assert world.client._client.post(url, json=nonsense).status_code == 400


def test_real_time_passes_without_jumps() -> None:
    """Broken if batches only finished when somebody moved the clock."""
    instants = iter([10.0, 10.5, 12.0])
    clock = SimulatorClock(monotonic=lambda: next(instants), wall=lambda: 1_000.0)
    assert [clock.now(), clock.now()] == [0.5, 2.0]
    assert clock.unix(2.0) == 1_002


def test_lines_split_at_newlines_only(tmp_path: Path) -> None:
    """Broken if other Unicode line ends in a prompt tore a request apart."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":"\xe2\x80\xa8\xc2\x85\r"}\n{}')
    assert list(raw_lines(path)) == [b'{"a":"\xe2\x80\xa8\xc2\x85\r"}\n', b"{}"]
