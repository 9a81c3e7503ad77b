"""The contract of the data plane on a folder, in memory, on S3, on GCS and on Azure."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchor_core.artifacts import ArtifactStore, LocalArtifactStore
from batchor_core.testing.artifact_suite import ArtifactContract, StoreOpener
from tests.artifacts.servers import ObjectStore, azurite, fake_gcs, moto

pytestmark = [
    pytest.mark.timeout(120),
    # azure-storage-blob hands parts over as bytes, and aiohttp thinks that unwise.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    """S3."""
    with moto() as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[ObjectStore]:
    """GCS."""
    with fake_gcs() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[ObjectStore]:
    """Azure."""
    with azurite() as server:
        yield server


class TestLocal(ArtifactContract):
    """A local folder."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> StoreOpener:
        return lambda: LocalArtifactStore(tmp_path / "artifacts")


class TestMemory(ArtifactContract):
    """fsspec's store in memory, and with it every place where a put is no atomic step."""

    @pytest.fixture
    def opener(self) -> StoreOpener:
        root = f"memory://{uuid.uuid4().hex}/pre fix"
        return lambda: ArtifactStore(root)


class TestS3(ArtifactContract):
    """S3."""

    @pytest.fixture
    def opener(self, s3: ObjectStore) -> StoreOpener:
        root = s3.new_root()
        return lambda: s3.open(root)


class TestGCS(ArtifactContract):
    """GCS."""

    @pytest.fixture
    def opener(self, gcs: ObjectStore) -> StoreOpener:
        root = gcs.new_root()
        return lambda: gcs.open(root)


class TestAzure(ArtifactContract):
    """Azure."""

    @pytest.fixture
    def opener(self, azure: ObjectStore) -> StoreOpener:
        root = azure.new_root()
        return lambda: azure.open(root)
