"""``BatchorComponent``: the store, the accounts and the sensors of a project, in YAML."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import dagster as dg
from pydantic import ConfigDict, Field, InstanceOf, SkipValidation

from batchor_dagster.components.fields import field, read_late, read_text, resolved
from batchor_dagster.components.scaffolders import BatchorScaffolder
from batchor_dagster.resources import (
    AnthropicBatchResource,
    BatchorResource,
    GeminiBatchResource,
    OpenAIBatchResource,
    ProviderBatchResource,
)
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.resources.io_manager import BatchParquetIOManager
from batchor_dagster.sensors.builder import build_batch_sensors


class Account(dg.Model):
    """An account of a provider."""

    LATE_FIELDS: ClassVar[frozenset[str]] = frozenset({"api_key"})

    api_key: Annotated[str | None, SkipValidation] = Field(
        default=None,
        description='Usually "{{ env.NAME }}", which is looked up when the key is used; default: '
        "the SDK's own variable.",
    )
    base_url: str | None = Field(default=None, description="Default: the SDK's own variable.")
    enqueued_tokens: int | None = Field(default=None, gt=0, description="Queue limit, in tokens.")
    enqueued_requests: int | None = Field(default=None, gt=0, description="In requests.")

    def resource(self) -> ProviderBatchResource:
        """Return the account's resource."""
        fields = self.model_dump(exclude_none=True, exclude={"type"})
        return _RESOURCES[self.type](**fields)  # type: ignore[attr-defined]  # every subclass's


class OpenAIAccount(Account):
    """An account of OpenAI, or of any host that speaks its protocol."""

    type: Literal["openai"]
    organization: str | None = None
    project: str | None = None
    api_version: str | None = Field(default=None, description="Azure's api-version.")


class AnthropicAccount(Account):
    """An account of Anthropic."""

    type: Literal["anthropic"]
    api_version: str | None = Field(default=None, description="The anthropic-version header.")
    prompt_cache: Literal["5m", "1h"] | None = None
    workspace: str | None = None


class GeminiAccount(Account):
    """An account of Gemini, on the Developer API or on Vertex AI."""

    type: Literal["gemini"]
    backend: Literal["auto", "developer", "vertex"] = "auto"
    cloud_project: str | None = None
    location: str | None = None
    gcs_uri: str | None = None


_RESOURCES: dict[str, type[ProviderBatchResource]] = {
    "openai": OpenAIBatchResource,
    "anthropic": AnthropicBatchResource,
    "gemini": GeminiBatchResource,
}

AnyAccount = Annotated[
    OpenAIAccount | AnthropicAccount | GeminiAccount, Field(discriminator="type")
]


def _accounts(context: dg.ResolutionContext, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: resolved(context.at_path(key), account) for key, account in value.items()}


@dg.scaffold_with(BatchorScaffolder)
class BatchorComponent(dg.Component, dg.Model, dg.Resolvable):
    """The store, the accounts of providers and the sensors that batch assets need.

    A project has one. Its sensors find every batch asset of the project, whether a
    ``BatchAssetComponent`` or ``@batch_asset`` declares it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    providers: Annotated[
        Mapping[str, InstanceOf[Account]],
        field(dict[str, AnyAccount], "Accounts, by the resource key that assets name.", _accounts),
    ]
    state: Annotated[
        str | None,
        SkipValidation,
        field(
            str,
            "Path of a SQLite file, or a postgresql:// URL; default: $BATCHOR_HOME/state.sqlite3.",
            read_late,
        ),
    ] = None
    artifacts: Annotated[
        str | None,
        field(
            str, "Folder or fsspec URL of batch files; default: beside the SQLite file.", read_text
        ),
    ] = None
    results: Annotated[
        str | None,
        field(
            str,
            "Folder or fsspec URL where the project's default IO manager keeps Parquet files; "
            "without it the project brings an IO manager of its own.",
            read_text,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        field(str, "Who owns the batch runs; default: the code location's name.", read_text),
    ] = None
    hold: Annotated[
        Literal["queued", "suspended", "none"],
        field(
            Literal["queued", "suspended", "none"],
            "How a backfill is kept open while a provider works.",
        ),
    ] = "queued"
    poll_s: Annotated[float, field(float, "Seconds between two looks at a working batch.")] = 30.0
    lease_s: Annotated[
        float, field(float, "Seconds after which a silent process loses a batch run to another.")
    ] = 120.0
    settle_s: Annotated[
        float,
        field(float, "Seconds for which an unacknowledged batch is looked for."),
    ] = 180.0
    gone_after_s: Annotated[
        float,
        field(float, "Seconds until a missing asset or partition is taken to be gone."),
    ] = 3600.0
    budget_usd_per_day: Annotated[
        float | None,
        field(float, "What one account and model may cost in a day (UTC), in US dollars."),
    ] = None
    listeners: Annotated[
        list[str] | None,
        field(list[str], "Who is told of each event: batchor_core:OpenTelemetryListener, …"),
    ] = None
    jobs: Annotated[
        list[str] | None,
        field(list[str], "Names of asset jobs: what they ask for is materialized in them too."),
    ] = None
    minimum_interval_seconds: Annotated[
        int, field(int, "Seconds between two ticks of the sensors.")
    ] = 30
    sensors: Annotated[
        Literal["running", "stopped"],
        field(Literal["running", "stopped"], "Whether the sensors run without being switched on."),
    ] = "running"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 (Dagster's)
        """Return the resources and the sensors."""
        status = dg.DefaultSensorStatus(self.sensors.upper())
        return dg.Definitions(
            resources=self.build_resources(),
            sensors=build_batch_sensors(
                jobs=self.jobs or (),
                minimum_interval_seconds=self.minimum_interval_seconds,
                default_status=status,
            ),
        )

    def build_resources(self) -> dict[str, Any]:
        """Return the resources, by their keys."""
        batchor = BatchorResource(
            state=self.state,
            artifacts=self.artifacts,
            namespace=self.namespace,
            hold=self.hold,
            poll_s=self.poll_s,
            lease_s=self.lease_s,
            settle_s=self.settle_s,
            gone_after_s=self.gone_after_s,
            budget_usd_per_day=self.budget_usd_per_day,
            listeners=self.listeners or [],
        )
        resources: dict[str, Any] = {BATCHOR_RESOURCE: batchor}
        resources |= {key: account.resource() for key, account in self.providers.items()}
        if self.results:
            resources["io_manager"] = BatchParquetIOManager(base_path=self.results)
        return resources
