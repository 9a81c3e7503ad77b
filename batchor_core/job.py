"""The recipe: what a user declares, and what of it is stored with the run."""

import base64
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
from pydantic import BaseModel, ConfigDict

from batchor_core.errors import ConfigurationError, ModelNotImportableError
from batchor_core.model.items import BatchItem, PromptParts
from batchor_core.model.policies import (
    ArtifactPolicy,
    BudgetPolicy,
    ChunkPolicy,
    RetryPolicy,
    ReusePolicy,
    TimingPolicy,
)
from batchor_core.planning.result_schema import arrow_type
from batchor_core.planning.schema_models import model_of
from batchor_core.planning.templates import PromptTemplate
from batchor_core.providers.registry import ProviderConfig
from batchor_core.sources.protocol import ItemSource

Items: TypeAlias = (
    Iterable[BatchItem]
    | ItemSource
    | pl.DataFrame
    | pl.LazyFrame
    | pa.Table
    | pa.RecordBatchReader
    | pads.Dataset
)
PromptBuilder = Callable[[BatchItem], str | PromptParts]
OnUnresolved = Literal["wait", "resubmit", "fail"]
OnChange = Literal["refuse", "supersede"]
OnLost = Literal["fail", "resend"]


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What to ask of which model, about which rows, and how to treat the answers.

    Attributes:
        items: The rows: ``BatchItem``s from any iterable, a source, a frame, or an Arrow table,
            dataset or stream. Each column of what has columns can be named in
            ``prompt_template`` and ``keep``. What can be read only once, or not from the middle,
            is first copied into a temporary file.
        provider_config: Model, endpoint and account.
        build_prompt: Makes the prompt of an item; for a frame the item's payload is the row as a
            mapping. At most one of this and ``prompt_template``; with neither, the payload itself
            or the column ``prompt`` is the prompt.
        prompt_template: As ``"Summarise: {text}"``; see ``planning.templates``.
        system_prompt: Instructions for every item; an item's own ``PromptParts`` wins.
        structured_output: A Pydantic model, or a JSON Schema, that every answer has to satisfy;
            None for text. Of a schema the answers' fields become columns as of a model's.
        schema_name: The schema's name at the provider; default: the model's.
        keep: Columns of the input that the result table keeps, with their types.
        id_column: The column that holds the item ids of a frame; default: the row number.
        chunk_policy: How large a provider batch may become.
        retry_policy: How often an item is sent again.
        timing: Leases, time-outs, polling.
        artifact_policy: What is kept of what was sent and received.
        reuse: Whose earlier answers are taken in place of asking again.
        budget: What the run, and its scope in one day, may cost. Not part of what the run is:
            started again with another budget, it goes on with that one; a bound that is left out
            stays as it was.
        budget_usd: Short for ``budget=BudgetPolicy(run_usd=...)``.
        on_unresolved: What becomes of a batch whose existence cannot be settled.
        on_lost: What becomes of rows whose answers the provider has lost: ``fail``, or ``resend``,
            which pays for them again and uses up an attempt.
        on_change: What becomes of an unfinished run of the same id with other input or another
            declaration: ``refuse`` the new job, or ``supersede`` the run by a successor, which
            sends nothing before what the old batches still return is collected.
        assumed_output_tokens: Reserved per item where no upper bound is set.
    """

    items: Items
    provider_config: ProviderConfig
    build_prompt: PromptBuilder | None = None
    prompt_template: str | None = None
    system_prompt: str | None = None
    structured_output: type[BaseModel] | Mapping[str, Any] | None = None
    schema_name: str | None = None
    keep: Mapping[str, Any] = field(default_factory=dict)
    id_column: str | None = None
    chunk_policy: ChunkPolicy = field(default_factory=ChunkPolicy)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    timing: TimingPolicy = field(default_factory=TimingPolicy)
    artifact_policy: ArtifactPolicy = field(default_factory=ArtifactPolicy)
    reuse: ReusePolicy = field(default_factory=ReusePolicy)
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    budget_usd: float | None = None
    on_unresolved: OnUnresolved = "wait"
    on_lost: OnLost = "fail"
    on_change: OnChange = "refuse"
    assumed_output_tokens: int = 500

    def __post_init__(self) -> None:
        if self.build_prompt is not None and self.prompt_template is not None:
            raise ConfigurationError("give build_prompt or prompt_template, not both")
        if self.prompt_template is not None:
            PromptTemplate(self.prompt_template)  # a malformed one shows at definition time
        if self.budget_usd is not None:
            if self.budget.run_usd is not None:
                raise ConfigurationError("give budget_usd or BudgetPolicy(run_usd=...), not both")
            if not 0 < self.budget_usd < math.inf:
                raise ConfigurationError(
                    f"budget_usd is {self.budget_usd}: give US dollars above 0"
                )

    @property
    def whole_budget(self) -> BudgetPolicy:
        """The budget, however it was given."""
        return BudgetPolicy(run_usd=self.budget_usd).over(self.budget)

    @property
    def output_model(self) -> type[BaseModel] | None:
        """The output model; of a JSON Schema, one that is made from it.

        Raises:
            SchemaNotSupportedError: The schema says something that no model can hold.
        """
        return output_model_of(self.structured_output, self.schema_name)


class StoredJob(BaseModel):
    """The part of a job that any process needs to drive its run; JSON, without secrets.

    Attributes:
        output: Import path of the output model, ``package.module:Class``.
        output_schema: The JSON Schema of the answers, where the user gave one in place of a model.
        kept_schema: The kept columns: an Arrow schema in its IPC form, as base64 text.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    provider_config: ProviderConfig
    system_prompt: str | None
    output: str | None
    output_schema: dict[str, Any] | None = None
    schema_name: str | None
    kept_schema: str
    chunk_policy: ChunkPolicy
    retry_policy: RetryPolicy
    timing: TimingPolicy
    artifact_policy: ArtifactPolicy
    reuse: ReusePolicy = ReusePolicy()
    on_unresolved: OnUnresolved
    on_lost: OnLost = "fail"
    assumed_output_tokens: int

    @classmethod
    def of(cls, job: BatchJob) -> "StoredJob":
        """Return what is stored of a job."""
        output = job.structured_output
        return cls(
            provider_config=job.provider_config,
            system_prompt=job.system_prompt,
            output=import_path(output) if isinstance(output, type) else None,
            output_schema=dict(output) if isinstance(output, Mapping) else None,
            schema_name=job.schema_name,
            kept_schema=_encode_schema(kept_schema(job)),
            chunk_policy=job.chunk_policy,
            retry_policy=job.retry_policy,
            timing=job.timing,
            artifact_policy=job.artifact_policy,
            reuse=job.reuse,
            on_unresolved=job.on_unresolved,
            on_lost=job.on_lost,
            assumed_output_tokens=job.assumed_output_tokens,
        )

    def load_output(self) -> type[BaseModel] | None:
        """Return the output model, imported or made from its schema.

        Raises:
            ModelNotImportableError: There is no such class.
        """
        if self.output_schema is not None:
            return _model_of_schema(self.output_schema, self.schema_name)
        return None if self.output is None else load_model(self.output)

    def kept(self) -> pa.Schema:
        """Return the kept columns with their types."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.kept_schema)))

    def spec(self) -> dict[str, Any]:
        """Return the JSON that is stored."""
        return self.model_dump(mode="json")


def output_model_of(
    output: type[BaseModel] | Mapping[str, Any] | None, schema_name: str | None
) -> type[BaseModel] | None:
    """Return an output model; of a JSON Schema, one that is made from it.

    Raises:
        SchemaNotSupportedError: The schema says something that no model can hold.
    """
    if output is None or isinstance(output, type):
        return output
    return _model_of_schema(output, schema_name)


def _model_of_schema(schema: Mapping[str, Any], name: str | None) -> type[BaseModel]:
    title = schema.get("title")
    return model_of(schema, name or (title if isinstance(title, str) and title else "Answer"))


def kept_schema(job: BatchJob) -> pa.Schema:
    """Return the kept columns with their types.

    Raises:
        ResultSchemaError: A type is none that a column can have.
    """
    return pa.schema([(name, arrow_type(dtype)) for name, dtype in job.keep.items()])


def _encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def declaration_of(job: BatchJob, *, host: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all that changes an answer but for the rows, as JSON.

    Prompts are not in it: they are part of every row's request key.
    """
    config = job.provider_config
    return {
        "provider": config.provider,
        "host": host,
        "endpoint": config.endpoint_name,
        "model": config.model,
        **config.answer_fields,
        "system_prompt": job.system_prompt,
        "schema": schema,
        "keep": {name: str(arrow_type(dtype)) for name, dtype in job.keep.items()},
    }


def encode_declaration(declaration: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a declaration that is hashed."""
    return msgspec.json.encode(declaration, order="deterministic")


def import_path(model: type[BaseModel]) -> str:
    """Return ``package.module:Class`` of a model."""
    return f"{model.__module__}:{model.__qualname__}"


def check_importable(model: type[BaseModel]) -> None:
    """Make sure that another process finds the model again.

    Raises:
        ModelNotImportableError: It lives in ``__main__``, in a function, or elsewhere by now.
    """
    if model.__module__ == "__main__" or load_model(import_path(model)) is not model:
        raise ModelNotImportableError(
            f"output model {model.__qualname__!r} of {model.__module__!r} cannot be imported by "
            "another process: define it at the top level of an importable module, or drive the "
            "run in this process only, with run_and_wait()"
        )


def load_model(path: str) -> type[BaseModel]:
    """Return the model behind an import path.

    Raises:
        ModelNotImportableError: There is no such class.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as exc:  # importing runs the user's module, which may raise anything
        raise ModelNotImportableError(
            f"output model {path!r} cannot be imported ({type(exc).__name__}: {exc}): give it as "
            "package.module:Class, at the top level of a module on the import path"
        ) from exc
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ModelNotImportableError(f"{path!r} is no pydantic model class")
    return found
