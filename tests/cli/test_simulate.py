"""`batchor simulate`: a provider for people who have no key."""

import signal
import socket

from tests.cli.commands import Shell


def test_it_prints_the_lines_that_point_the_sdk_at_it_and_plays_the_faults(shell: Shell) -> None:
    """Nobody could try the product, or its behaviour under faults, without a key and a bill."""
    options = ["--batch-seconds", "0.2", "--api-key", "sk-sim", "--seed", "7"]
    fault = '{"kind": "refusal", "match": {"prompt": "cash"}}'
    with shell.spawn("simulate", *options, "--fault", fault, "--fault", "duplicate_line") as server:
        assert server.stdout is not None
        said = [server.stdout.readline().strip() for _ in range(8)]
        assert "no model is involved" in said[0]
        exports = dict(line.removeprefix("export ").split("=", 1) for line in said[2:])
        assert exports["GOOGLE_GEMINI_BASE_URL"].endswith("/gemini")
        assert exports["ANTHROPIC_API_KEY"] == "sk-sim"
        assert exports["OPENAI_API_KEY"] == "sk-sim"
        assert exports["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
        done = shell.run(*shell.start("--run-id", "r", "--wait"), env=exports)
        server.send_signal(signal.SIGINT)
        assert server.stderr is not None
        assert server.stderr.read() == ""
    assert server.returncode == 0
    assert done.returncode == 3, done.stderr
    assert "3 (2 ok, 1 failed)" in done.stdout
    assert shell.sim.ledger().executed() == 0


def test_a_port_in_use_is_one_line(shell: Shell) -> None:
    """A second simulator would end in a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = shell.ok("simulate", "--port", port, exit_code=1)
    assert result.stderr.startswith(f"Error: cannot serve on port {port}: ")
