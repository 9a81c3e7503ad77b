"""The adapter of Gemini on Vertex AI: batch prediction jobs over files in Google Cloud Storage."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from batchor_core.errors import ConfigurationError, MissingCredentialsError, ProviderError
from batchor_core.ids import path_segment
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.model.limits import ProviderLimits
from batchor_core.planning.schema_compiler import CompiledSchema, Dialect
from batchor_core.providers.gemini.bucket import Bucket
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.gemini.names import dialect_of, display_name
from batchor_core.providers.gemini.records import operations_of, vertex_batch
from batchor_core.providers.gemini.requests import request_encoder
from batchor_core.providers.gemini.results import vertex_answer
from batchor_core.providers.gemini.sdk import Reply, SdkClient, google_credentials
from batchor_core.providers.gemini.wire import field
from batchor_core.providers.listing import BatchList, ListPage
from batchor_core.providers.protocol import (
    Answer,
    ProviderBatch,
    RawPart,
    RequestEncoder,
    Sighting,
    Upload,
    Wanted,
    no_progress,
)
from batchor_core.providers.scrubbing import Scrubber
from batchor_core.providers.wire import UnusableAnswerError, id_of, text_of

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

LIMITS = ProviderLimits(max_requests=200_000, max_bytes=950_000_000)
"""200,000 requests and 1 GB a file (facts on providers, 3); 5 % taken off the bytes."""

_DISPLAY_NAME_CHARS = 128
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NOT_CANCELLABLE = frozenset({400, 404, 409, 410})
_REQUESTS = "requests.jsonl"
_PAGE_SIZE = 100


class VertexProvider:
    """One Google Cloud project's batch prediction.

    Args:
        config: Model, project, location, bucket and parameters.
        credentials: Google's; default: Application Default Credentials.
        storage_options: For the file system that stages files, over the same credentials.

    Raises:
        MissingCredentialsError: There are no credentials.
        ConfigurationError: Project, location or bucket is missing, or ``gcsfs`` is.
    """

    name = "gemini"
    limits = LIMITS
    is_keyless = False

    def __init__(
        self,
        config: GeminiProviderConfig,
        *,
        credentials: "Credentials | None" = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self.dialect: Dialect = dialect_of(config)
        self._location = _required(
            config.location or os.environ.get("GOOGLE_CLOUD_LOCATION"),
            "location",
            "GOOGLE_CLOUD_LOCATION",
        )
        self._root = _required(config.gcs_uri, "gcs_uri").rstrip("/")
        project = config.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        if credentials is None:
            credentials, own_project = _default_credentials()
            project = project or own_project
        self._project = _required(project, "project", "GOOGLE_CLOUD_PROJECT")
        self._scrubber = _TokenScrubber(credentials)
        self._bucket = Bucket(
            {"token": credentials, "project": self._project, **(storage_options or {})},
            self._scrubber.text,
        )
        self._sdk = SdkClient(
            {
                "vertexai": True,
                "credentials": credentials,
                "project": self._project,
                "location": self._location,
            },
            base_url=config.base_url,
            api_version=config.api_version,
            timeout_s=config.timeout_s,
            scrubber=self._scrubber,
        )
        self._errors = self._sdk.error_mapping()

    @cached_property
    def host(self) -> str:
        """Host and port of the base URL."""
        return urlsplit(self._sdk.base_url).netloc.rpartition("@")[2]

    @cached_property
    def account(self) -> str:
        """Provider, host, project and location: whoever may use them sees the same batches."""
        return f"gemini:{self.host}:{self._project}:{self._location}"

    @property
    def credential(self) -> str:
        """The account: project and location say whose batches are seen, whatever the key."""
        return self.account

    @cached_property
    def scope(self) -> str:
        """The queue that this project's runs of this model share."""
        return self._config.quota_scope or f"{self.account}:{self._config.model}"

    def encoder(
        self, *, system_prompt: str | None, schema: CompiledSchema | None
    ) -> RequestEncoder:
        """Return the endpoint's encoder."""
        return request_encoder(
            self._config, host=self.host, system_prompt=system_prompt, schema=schema
        )

    def upload(self, path: Path, *, key: str, progress: Callable[[], None] = no_progress) -> Upload:
        """Put a request file into a folder of the submission's own."""
        uri = f"{self._root}/{_folder_name(key)}/{_REQUESTS}"
        self._bucket.put(path, uri, progress)
        return Upload(ref=uri, server_time=self._list_call({"pageSize": 1}).server_time)

    def create(
        self,
        *,
        upload_ref: str | None,
        path: Path,  # noqa: ARG002 - for providers that take the requests in this call
        key: str,
        tags: Mapping[str, str],
        timeout_s: float,
    ) -> ProviderBatch:
        """Ask for a job over an uploaded file."""
        source = upload_ref or ""
        labels = {
            name: value
            for name, value in tags.items()
            if _LABEL.fullmatch(name) and _LABEL.fullmatch(value)
        }
        body = {
            "displayName": display_name(key, _DISPLAY_NAME_CHARS),
            "model": _model_resource(self._config.model),
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [source]}},
            "outputConfig": {
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": f"{source.rpartition('/')[0]}/output"},
            },
            **({"labels": labels} if labels else {}),
        }
        with self._mapped(creating=True):
            return vertex_batch(
                self._sdk.call("post", "batchPredictionJobs", body, timeout_s=timeout_s).record
            )

    def get(self, batch_id: str) -> ProviderBatch:
        """Return one job."""
        with self._mapped():
            return vertex_batch(self._sdk.call("get", quote(batch_id, safe="/")).record)

    def get_many(self, batch_ids: Sequence[str]) -> Mapping[str, ProviderBatch]:
        """Return those of these jobs that the first list pages show."""
        return self._list({}).those(batch_ids)

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """Return one page of the project's jobs."""
        page = self._list({}).page(position)
        return page.batches, page.cursor

    def find(self, wanted: Wanted) -> Sighting:
        """Look for the jobs of one submission: by name, which the server filters, else by file."""
        label = display_name(wanted.key, _DISPLAY_NAME_CHARS)

        def is_ours(batch: ProviderBatch) -> bool:
            return batch.key == label or (
                wanted.upload_ref is not None and batch.upload_ref == wanted.upload_ref
            )

        named = self._list({"filter": f'display_name="{_escaped(label)}"'})
        try:
            sighting = named.find(is_ours, None)
        except ProviderError as exc:
            if exc.fault.kind is not FaultKind.REJECTED:  # else it takes no such filter
                raise
        else:
            if sighting.matches:
                return sighting
        return self._list({}).find(is_ours, wanted.since)

    def list_batches(self, *, since: datetime | None) -> Iterator[ProviderBatch]:
        """Return the project's jobs."""
        return self._list({}).down_to(since)

    def cancel(self, batch_id: str) -> None:
        """Ask to cancel."""
        with self._mapped(harmless=_NOT_CANCELLABLE):
            try:
                self._sdk.call("post", f"{quote(batch_id, safe='/')}:cancel")
            except UnusableAnswerError:
                return  # the status was 200, and that is all that it says

    def download_results(
        self,
        result: Mapping[str, Any],
        folder: Path,
        progress: Callable[[], None],
        *,
        leave_out_missing: bool = False,
    ) -> list[RawPart]:
        """Download every file of answers under the job's output folder."""
        place = id_of(result, "output_folder") or id_of(result, "output_prefix")
        if not place:
            return []
        parts = []
        for number, uri in enumerate(self._answer_files(place)):
            path = folder / f"output-{number}.jsonl"
            self._bucket.get(uri, path, progress)
            parts.append(RawPart(kind="output", path=path))
        if not parts and not leave_out_missing and not result.get("may_be_empty"):
            raise _missing(place)
        return parts

    def decode(self, part: RawPart, line: bytes) -> Answer | None:  # noqa: ARG002 - one kind only
        """Decode one line."""
        return self._scrubber.decoded(vertex_answer, line)

    def delete_remote(self, *, upload_ref: str | None, result: Mapping[str, Any] | None) -> None:
        """Remove the submission's folder, with requests and answers in it."""
        folder = (upload_ref or "").removesuffix(f"/{_REQUESTS}")
        if folder == upload_ref or not folder:
            folder = id_of(result or {}, "output_prefix") or ""
        if folder.startswith(f"{self._root}/"):
            self._bucket.delete_folder(folder)

    def close(self) -> None:
        """Close connections."""
        self._bucket.close()
        self._sdk.close()

    @contextmanager
    def _mapped(self, **options: Any) -> Iterator[None]:
        """Surround one call; before it, credentials are renewed, and then nothing was sent yet."""
        from google.auth import exceptions  # noqa: PLC0415 - as late as the SDK itself

        try:
            with self._errors.call(**options):
                yield
        except exceptions.TransportError as exc:
            raise _auth_error(FaultKind.TRANSIENT, FaultOwner.NETWORK, exc) from exc
        except exceptions.GoogleAuthError as exc:
            raise _auth_error(FaultKind.ACCOUNT, FaultOwner.ACCOUNT, exc) from exc

    def _answer_files(self, place: str) -> list[str]:
        return [
            uri
            for uri in self._bucket.list_files(place)
            if uri.endswith(".jsonl") and not uri.endswith(f"/{_REQUESTS}")
        ]

    def _list(self, query: Mapping[str, Any]) -> BatchList:
        def fetch(token: str) -> ListPage:
            page = {**query, "pageSize": _PAGE_SIZE, **({"pageToken": token} if token else {})}
            reply = self._list_call(page)
            with self._mapped():
                jobs = operations_of(reply.record, "batchPredictionJobs")
                return ListPage(
                    batches=[vertex_batch(job) for job in jobs],
                    cursor=text_of(field(reply.record, "nextPageToken")),
                    server_time=reply.server_time,
                )

        return BatchList(fetch, _PAGE_SIZE)

    def _list_call(self, query: Mapping[str, Any]) -> Reply:
        with self._mapped():
            return self._sdk.call("get", f"batchPredictionJobs?{urlencode(query)}")


class _TokenScrubber(Scrubber):
    """Hides the access token that is in force; it changes every hour."""

    def __init__(self, credentials: "Credentials") -> None:
        super().__init__("")
        self._credentials = credentials

    def text(self, text: str) -> str:
        """Return ``text`` without the token."""
        return self._now().text(text)

    def data(self, data: bytes) -> bytes:
        """Return ``data`` without the token."""
        return self._now().data(data)

    def is_clean(self, error: BaseException) -> bool:
        """Whether no message in the chain of an exception shows it."""
        return self._now().is_clean(error)

    def _now(self) -> Scrubber:
        return Scrubber(self._credentials.token or "")


def _default_credentials() -> "tuple[Credentials, str | None]":
    from google.auth import exceptions  # noqa: PLC0415 - as late as the SDK itself

    try:
        return google_credentials()
    except exceptions.GoogleAuthError as exc:
        raise MissingCredentialsError(
            "no Google credentials for Vertex AI: run `gcloud auth application-default login`, or "
            "set GOOGLE_APPLICATION_CREDENTIALS to a service account's file"
        ) from exc


def _required(value: str | None, field_name: str, variable: str = "") -> str:
    if value:
        return value
    hint = f", or set {variable}" if variable else ", as gs://bucket/folder"
    raise ConfigurationError(
        f"Gemini on Vertex AI needs {field_name}: give it to GeminiProviderConfig{hint}"
    )


def _folder_name(key: str) -> str:
    return path_segment(key.replace("/", "_")).replace("%", "_")


def _model_resource(model: str) -> str:
    return model if "/" in model else f"publishers/google/models/{model}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _auth_error(kind: FaultKind, owner: FaultOwner, error: Exception) -> ProviderError:
    message = " ".join(str(error).split())[:300]
    fault = Fault(kind=kind, owner=owner, code=type(error).__name__, message=message)
    return ProviderError(f"{fault.code}: {fault.message}", fault)


def _missing(place: str) -> ProviderError:
    fault = Fault(
        kind=FaultKind.MISSING,
        owner=FaultOwner.PROVIDER,
        code="no_result_files",
        message=f"there are no files of answers under {place}",
    )
    return ProviderError(f"{fault.code}: {fault.message}", fault)
