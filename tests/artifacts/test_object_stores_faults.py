"""What goes wrong on the way to an object store, and what is told about it."""

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.remote import public_url
from batchor_core.artifacts.remote_errors import is_transient, one_line
from batchor_core.errors import (
    ArtifactAlteredError,
    ArtifactError,
    ArtifactUnavailableError,
    ConfigurationError,
)
from batchor_core.testing.artifact_suite import read, write
from tests.artifacts.servers import ObjectStore, always, moto

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t-s3cr3t-s3cr3t"
IMPATIENT = {"config_kwargs": {"retries": {"max_attempts": 0}}}


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    """S3."""
    with moto() as server:
        yield server


class OddFileSystem(MemoryFileSystem):
    """Files in memory, behind a connection whose next calls fail as scripted."""

    protocol = "odd"
    cut_gets = 0
    failures: list[Exception] = []  # noqa: RUF012 - reset by the fixture

    def get_file(self, rpath: str, lpath: Any, **kwargs: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        super().get_file(rpath, lpath, **kwargs)
        if OddFileSystem.cut_gets:
            OddFileSystem.cut_gets -= 1
            os.truncate(lpath, 1)

    def put_file(self, lpath: Any, rpath: str, **kwargs: Any) -> None:
        super().put_file(lpath, rpath, **kwargs)
        if self.failures:
            raise self.failures.pop()


@pytest.fixture
def odd() -> Iterator[ArtifactStore]:
    """A store behind such a connection."""
    fsspec.register_implementation("odd", OddFileSystem, clobber=True)
    store = ArtifactStore(f"odd://{uuid.uuid4().hex}")
    yield store
    store.close()
    OddFileSystem.cut_gets = 0
    OddFileSystem.failures = []


class TestSetUp:
    @pytest.mark.parametrize(
        ("url", "library", "extra"),
        [
            ("s3://b/p", "s3fs", "s3"),
            ("gs://b/p", "gcsfs", "gcs"),
            ("az://c/p", "adlfs", "azure"),
            ("abfs://c@account.dfs.core.windows.net/p", "adlfs", "azure"),
        ],
    )
    def test_a_missing_extra_is_named(
        self, monkeypatch: pytest.MonkeyPatch, url: str, library: str, extra: str
    ) -> None:
        """A user would see an ImportError from the depth of fsspec."""
        monkeypatch.setitem(sys.modules, library, None)
        known = sys.modules["fsspec.registry"]._registry  # fsspec.registry is a view of it
        protocol = url.partition(":")[0]
        monkeypatch.delitem(known, protocol, raising=False)
        with pytest.raises(ConfigurationError) as caught:
            ArtifactStore(url)
        expected = f"artifacts on {protocol}:// need {library}: "
        assert str(caught.value) == f"{expected}pip install 'batchor-dagster[{extra}]'"

    @pytest.mark.parametrize(
        "url", ["nosuch://b/p", "simplecache::s3://b/p", "memory://b/*/p", "memory://b/p#1"]
    )
    def test_a_root_that_cannot_work_is_refused(self, url: str) -> None:
        """Removing one run's files would remove those of others that match a pattern."""
        with pytest.raises(ConfigurationError, match="artifacts cannot lie on"):
            ArtifactStore(url)

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            (f"sftp://user:{SECRET}@host:22/p", "sftp://host:22/p"),
            (f"az://c/p?sig={SECRET}", "az://c/p"),
            ("abfs://c@a.dfs.core.windows.net/p", "abfs://c@a.dfs.core.windows.net/p"),
            (f"abfs://c:{SECRET}@a.dfs.core.windows.net/p", "abfs://a.dfs.core.windows.net/p"),
            ("memory://b/a@b", "memory://b/a@b"),
        ],
    )
    def test_the_root_is_shown_without_secrets(self, url: str, shown: str) -> None:
        """A password would be written to logs, errors and whatever records the root."""
        assert public_url(url) == shown


class TestConnections:
    def test_a_cut_download_is_repeated(self, odd: ArtifactStore) -> None:
        """A run would pause because a connection broke, as if its files had been altered."""
        ref = write(odd, "runs/r/f")
        OddFileSystem.cut_gets = 1
        assert read(odd, ref) == b"content"
        OddFileSystem.cut_gets = 2
        with pytest.raises(ArtifactAlteredError):
            read(odd, ref)

    def test_a_failed_upload_leaves_nothing(self, odd: ArtifactStore) -> None:
        """A file would count as written although the connection broke before its end."""
        OddFileSystem.failures = [ConnectionResetError("reset")]
        with pytest.raises(ArtifactUnavailableError, match="cannot be written now: reset"):
            write(odd, "runs/r/f")
        assert not [name for name in MemoryFileSystem.store if name.endswith(".tmp")]
        assert read(odd, write(odd, "runs/r/f")) == b"content"

    def test_an_error_holds_no_option(self) -> None:
        """Credentials would be written to the log and to the pause reason in the database."""
        options = {"secret": SECRET, "client_kwargs": {"aws_session_token": "token-token"}}
        error = OSError(f"{SECRET}\nand token-token at https://h/p?sig=abc&x=1 failed")
        assert one_line(error, options) == "*** and *** at https://h/p?*** failed"
        assert len(one_line(OSError("x" * 5000), {})) < 400

    @pytest.mark.parametrize(
        ("error", "transient"),
        [
            (ConnectionResetError(), True),
            (TimeoutError(), True),
            (OSError(errno.EBUSY, "Please reduce your request rate."), True),
            (OSError(errno.ENOSPC, "full"), False),
            (PermissionError("Access Denied"), False),
            (OSError("Forbidden: https://storage.googleapis.com/b"), False),
            (ValueError("Must provide credentials"), False),
            (TypeError("unexpected keyword"), False),
        ],
    )
    def test_plain_errors_are_told_apart(self, error: Exception, *, transient: bool) -> None:
        """A run would pause at a hiccup, or try for ever what only a person can mend."""
        assert is_transient(error) is transient

    @pytest.mark.parametrize(("status", "transient"), [(503, True), (429, True), (401, False)])
    def test_answers_are_told_apart(self, status: int, *, transient: bool) -> None:
        """The status of an answer would not count with one of the libraries."""
        gcs = pytest.importorskip("gcsfs.retry").HttpError({"code": status, "message": "m"})
        boto = pytest.importorskip("botocore.exceptions")
        s3 = boto.ClientError({"ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
        azure = pytest.importorskip("azure.core.exceptions").HttpResponseError("m")
        azure.status_code = status
        for error in (gcs, s3, azure):
            assert is_transient(error) is transient

    def test_broken_connections_of_every_library_are_known(self) -> None:
        """A library's own connection errors would pause runs."""
        aiohttp = pytest.importorskip("aiohttp")
        boto = pytest.importorskip("botocore.exceptions")
        azure = pytest.importorskip("azure.core.exceptions")
        for error in (
            aiohttp.ServerDisconnectedError(),
            aiohttp.ClientPayloadError(),
            boto.EndpointConnectionError(endpoint_url="u"),
            boto.ReadTimeoutError(endpoint_url="u"),
            azure.ServiceRequestError("m"),
            azure.ServiceResponseError("m"),
        ):
            assert is_transient(error), error
        for lasting in (boto.NoCredentialsError(), azure.ClientAuthenticationError("m")):
            assert not is_transient(lasting), lasting

    @pytest.mark.parametrize(
        ("status", "kind"), [(503, ArtifactUnavailableError), (403, ArtifactError)]
    )
    def test_what_s3_answers_becomes_one_of_our_errors(
        self, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[ArtifactError]
    ) -> None:
        """A raw botocore exception would end the process that drives the run."""
        pytest.importorskip("s3fs")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with always(status) as endpoint:
            options: dict[str, Any] = {"endpoint_url": endpoint, "key": "k", "secret": SECRET}
            store = ArtifactStore("s3://bucket", **options, **IMPATIENT)
            with pytest.raises(ArtifactError) as caught:
                write(store, "runs/r/f")
            store.close()
        assert type(caught.value) is kind
        assert "'runs/r/f' under 's3://bucket' cannot be written" in str(caught.value)
        assert SECRET not in str(caught.value)

    def test_an_endpoint_that_is_down_is_unavailable(self) -> None:
        """A maintenance of the object store would pause every run."""
        pytest.importorskip("s3fs")
        options: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:9", "key": "k"}
        store = ArtifactStore("s3://bucket", **options, secret=SECRET, **IMPATIENT)
        with pytest.raises(ArtifactUnavailableError, match="Could not connect"):
            write(store, "runs/r/f")
        store.close()

    def test_a_bucket_that_is_not_there_is_named(self, s3: ObjectStore) -> None:
        """A typing error in the root would look like a lost file, or be retried for ever."""
        store = s3.open("s3://no-such-bucket-here")
        with pytest.raises(ArtifactError, match="'s3://no-such-bucket-here' cannot be written"):
            write(store, "runs/r/f")
        store.close()


SPAWNED = """
import sys
from batchor_core import BatchRunner
from batchor_core.testing.artifact_suite import read, write
with BatchRunner("memory", sys.argv[1]) as runner:
    assert read(runner.artifacts, write(runner.artifacts, "runs/r/f")) == b"content"
"""

FORKED = """
import os, sys
from batchor_core.artifacts import ArtifactStore
from batchor_core.testing.artifact_suite import read, write
store = ArtifactStore(sys.argv[1])
ref = write(store, "runs/r/parent")
child = os.fork()
if child == 0:
    status = 1
    try:
        assert read(store, ref) == b"content"
        write(store, "runs/r/child")
        store.close()
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert read(store, ref) == b"content"
with store.local(write(store, "runs/r/child")) as path:
    assert path.read_bytes() == b"content"
store.close()
"""


class TestProcesses:
    @pytest.mark.parametrize("script", [SPAWNED, FORKED], ids=["spawned", "forked"])
    def test_a_child_process_takes_all_from_its_environment(
        self, s3: ObjectStore, script: str
    ) -> None:
        """Workers that are configured by AWS_* alone, or were forked, could not reach a file."""
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "FSSPEC_S3_ENDPOINT_URL": s3.endpoint,
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", script, s3.new_root()]
        finished = subprocess.run(
            command, check=False, env=environment, capture_output=True, text=True, timeout=60
        )
        assert finished.returncode == 0, finished.stderr
        assert SECRET not in finished.stderr
