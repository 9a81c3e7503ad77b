"""What a user says about Gemini, and which backend and account that means."""

from pathlib import Path
from typing import Any

import pytest
from google.auth import exceptions
from pydantic import SecretStr

from batchor_core.errors import ConfigurationError, MissingCredentialsError
from batchor_core.planning.schema_compiler import Dialect
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.gemini import bucket as bucket_module
from batchor_core.providers.gemini import vertex as vertex_module
from batchor_core.providers.gemini.adapter import GeminiProvider, VertexProvider, gemini_provider
from batchor_core.providers.registry import connect, connect_without_key


def config(**fields: Any) -> GeminiProviderConfig:
    """Configure a model."""
    return GeminiProviderConfig(**{"model": "gemini-test", **fields})


def vertex_config(**fields: Any) -> GeminiProviderConfig:
    """Configure a model on Vertex AI."""
    given = {"project": "p", "location": "europe-west4", "gcs_uri": "gs://b/x", **fields}
    return config(backend="vertex", **given)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"generation_config": {"maxOutputTokens": 1}}, "max_output_tokens"),
        ({"generation_config": {"response_schema": {}}}, "set by the job itself"),
        ({"generation_config": {"temperature": float("nan")}}, "not JSON"),
        ({"request_params": {"system_instruction": {}}}, "set by the job itself"),
        ({"request_params": {"labels": {}}}, "set by the job itself"),
        ({"dimensions": 3}, "only embeddings have any"),
        ({"endpoint": "embeddings"}, "is not known here"),
        ({"endpoint": "embeddings", "dimensions": 3, "max_output_tokens": 3}, "embeddings have no"),
        ({"model": "gemini test"}, "model"),
        ({"model": "../files"}, "model"),
        ({"model": "models/"}, "model"),
        ({"gcs_uri": "s3://bucket/x"}, "gcs_uri"),
        ({"gcs_uri": "gs://bucket/*"}, "gcs_uri"),
        ({"base_url": "https://user:pw@host"}, "base_url"),
        ({"backend": "openai"}, "backend"),
        ({"input_mode": "stream"}, "input_mode"),
    ],
)
def test_what_cannot_work(fields: dict[str, Any], why: str) -> None:
    """A mistake would show only once a batch has failed."""
    with pytest.raises(ConfigurationError, match=why):
        config(**fields)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("gemini-test", "gemini-test"),
        ("models/gemini-test", "gemini-test"),
        ("publishers/google/models/gemini-test", "gemini-test"),
        ("tunedModels/mine-1", "tunedModels/mine-1"),
        ("projects/p/locations/l/models/1@2", "projects/p/locations/l/models/1@2"),
    ],
)
def test_models_in_any_spelling(given: str, name: str) -> None:
    """The same model would have two prices and two caches of answers."""
    assert config(model=given).model == name


@pytest.mark.parametrize(
    ("environment", "is_vertex"),
    [
        ({}, False),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "true"}, True),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "1"}, True),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "false"}, False),
        ({"GOOGLE_GENAI_USE_ENTERPRISE": "true"}, True),
        ({"GOOGLE_GENAI_USE_ENTERPRISE": "false", "GOOGLE_GENAI_USE_VERTEXAI": "true"}, False),
    ],
)
def test_the_backend_that_the_environment_means(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_vertex: bool
) -> None:
    """Requests would go elsewhere than those of every other program on the machine."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert config().is_vertex is is_vertex
    assert config(backend="developer").is_vertex is False
    assert config(backend="vertex").is_vertex is True


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would be paid by another account than the SDK's."""
    monkeypatch.setenv("GEMINI_API_KEY", "key-gemini-0123")
    gemini = GeminiProvider(config()).credential
    monkeypatch.setenv("GOOGLE_API_KEY", "key-google-0123")
    google = GeminiProvider(config()).credential
    given = GeminiProvider(config(api_key=SecretStr("key-given-0123"))).credential
    assert len({gemini, google, given}) == 3
    assert google == GeminiProvider(config(api_key=SecretStr("key-google-0123"))).credential


@pytest.mark.parametrize("key", [None, "", " ", "key with\nbreak", " key-0123", "kéy-0123"])
def test_keys_that_are_none(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """A missing key would show only after the whole input was read."""
    with pytest.raises(MissingCredentialsError) as caught:
        GeminiProvider(config(api_key=SecretStr(key) if key is not None else None))
    assert key is None or not key.strip() or key not in str(caught.value)
    if not (key or "").strip():
        assert "GOOGLE_API_KEY or GEMINI_API_KEY" in str(caught.value)


def test_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would leave for Google although another host was named."""
    key = SecretStr("key-0123456789")
    assert GeminiProvider(config(api_key=key)).host == "generativelanguage.googleapis.com"
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9/x")
    assert GeminiProvider(config(api_key=key)).host == "127.0.0.1:9"
    given = config(api_key=key, base_url="http://127.0.0.1:8")
    provider = GeminiProvider(given)
    assert provider.host == "127.0.0.1:8"
    assert provider.scope == "gemini:127.0.0.1:8:gemini-test"
    assert GeminiProvider(config(api_key=key, quota_scope="mine")).scope == "mine"


def test_the_schemas_dialect() -> None:
    """Schemas would be compiled for one field and sent in the other (facts 0.12)."""
    key = SecretStr("key-0123456789")
    assert GeminiProvider(config(api_key=key)).dialect is Dialect.GEMINI
    plain = config(api_key=key, schema_dialect="responseJsonSchema")
    assert GeminiProvider(plain).dialect is Dialect.GEMINI_JSON_SCHEMA


def test_inline_batches_are_smaller() -> None:
    """A chunk that fits a file would be refused as a request."""
    given = {"api_key": SecretStr("k-0123456"), "input_mode": "inline"}
    texts = GeminiProvider(config(**given)).limits
    vectors = GeminiProvider(config(**given, endpoint="embeddings", dimensions=3_072)).limits
    assert texts.max_bytes * 3 < 20_000_000
    assert vectors.max_requests < texts.max_requests < 50_000


def test_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run on Vertex AI could not be read without its credentials."""
    provider = connect(config(api_key=SecretStr("key-0123456789")))
    assert isinstance(provider, GeminiProvider)
    reader = connect_without_key(vertex_config())
    assert isinstance(reader, GeminiProvider)


@pytest.mark.parametrize(
    ("missing", "variable"),
    [
        ("project", "GOOGLE_CLOUD_PROJECT"),
        ("location", "GOOGLE_CLOUD_LOCATION"),
        ("gcs_uri", "gs://bucket/folder"),
    ],
)
def test_what_vertex_needs(monkeypatch: pytest.MonkeyPatch, missing: str, variable: str) -> None:
    """It would fail with whatever the first call says."""
    monkeypatch.setattr(vertex_module, "google_credentials", lambda: (object(), None))
    with pytest.raises(ConfigurationError, match=f"needs {missing}.*{variable}"):
        gemini_provider(vertex_config(**{missing: None}))


def test_vertex_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Google's own traceback would be all that a user sees."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(MissingCredentialsError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
        VertexProvider(vertex_config())
    assert isinstance(caught.value.__cause__, exceptions.DefaultCredentialsError)


def test_vertex_without_gcsfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError would come when the first file is sent."""

    def absent(protocol: str) -> None:
        raise ImportError(f"no {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", absent)
    with pytest.raises(ConfigurationError, match=r"batchor-dagster\[gcs\]"):
        bucket_module.Bucket({}, str)
