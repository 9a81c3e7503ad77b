"""The options of a batch asset, each written once.

The decorator's keywords, the fields of the YAML component, the declaration and the table in
``docs/options.md`` are all made from these fields. An option has a name, a type, a default, and a
description as the second argument of its ``Annotated``.
"""

import difflib
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar, cast, dataclass_transform, get_type_hints

import dagster as dg
from pydantic import BaseModel

from batchor_core import (
    ArtifactPolicy,
    ChunkPolicy,
    ConfigurationError,
    RetryPolicy,
    TokenPrice,
)
from batchor_core.integration import PromptBuilder
from batchor_dagster.asset.checks import ALL_CHECKS, BatchChecks

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def options(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass that type checkers do not know to be frozen.

    Otherwise they would refuse a pydantic model that inherits from it.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


@options
class OptionsWithDefaults:
    """The options of a batch asset that have a default."""

    output: Annotated[
        type[BaseModel] | Mapping[str, Any] | None,
        "What every answer has to satisfy: a Pydantic model, importable at module level, or a JSON "
        "Schema. Without it answers are texts.",
    ] = None
    provider: Annotated[
        str,
        "Resource key of the account: of an `OpenAIBatchResource`, `AnthropicBatchResource` "
        "or `GeminiBatchResource`.",
    ] = "openai"
    prompt_template: Annotated[
        str | None,
        "Prompt of a row, as `'Summarise: {text}'`. Without it and `build_prompt`, the prompt is "
        "the rows' column `prompt` (and the column `system_prompt`, if there is one).",
    ] = None
    build_prompt: Annotated[
        PromptBuilder | None, "Function that returns the prompt of an item."
    ] = None
    system_prompt: Annotated[str | None, "Instructions for every row."] = None
    schema_name: Annotated[
        str | None,
        "Name of the output schema at the provider; default: the model's name or the schema's "
        "title.",
    ] = None
    params: Annotated[
        Mapping[str, Any], "Further fields of each request's body, as `temperature`."
    ] = field(default_factory=dict)
    max_output_tokens: Annotated[int | None, "Upper bound of an answer; required by Anthropic."] = (
        None
    )
    endpoint: Annotated[
        str | None, "As `chat` or `embeddings`; default: the provider's usual one."
    ] = None
    dimensions: Annotated[
        int | None, "Length of embedding vectors; default: the model's own, where known."
    ] = None
    price: Annotated[
        TokenPrice | None,
        "Price of the model's tokens (`input_usd`, `output_usd` per million, `batch_discount`, "
        "…); default: the known price. A budget needs a price.",
    ] = None
    keep: Annotated[
        Mapping[str, Any],
        "Columns of the rows that the stored table keeps, with their types: `string`, `int64`, "
        "`float64`, `bool`, `date`, `timestamp[us]`, …; in Python also types of Polars and Arrow.",
    ] = field(default_factory=dict)
    id_column: Annotated[
        str | None, "Column of the rows with unique ids; default: the row number."
    ] = None
    chunks: Annotated[
        ChunkPolicy,
        "How large one provider batch may become: `max_requests`, `max_bytes`, `max_tokens`.",
    ] = field(default_factory=ChunkPolicy)
    retries: Annotated[
        RetryPolicy,
        "How often a row is sent again: `max_attempts`, `max_invalid_attempts`, `max_rounds`, "
        "`delay_s`, `max_delay_s`.",
    ] = field(default_factory=RetryPolicy)
    artifacts: Annotated[
        ArtifactPolicy,
        "Which files are kept: `raw_results` (the provider's answers) `keep` or `drop`, "
        "`remote_files` (at the provider) `delete` or `keep`.",
    ] = field(default_factory=ArtifactPolicy)
    on_unresolved: Annotated[
        Literal["wait", "resubmit", "fail"],
        "What to do if nobody can tell whether a batch was created: `wait`, `resubmit`, which may "
        "pay twice, or `fail` its rows.",
    ] = "wait"
    on_lost: Annotated[
        Literal["fail", "resend"],
        "What to do with rows whose answers the provider has lost: `fail`, or `resend`, which pays "
        "for them again.",
    ] = "fail"
    reuse: Annotated[
        Literal["partition", "namespace", "off"],
        "Whose answers to the same requests are reused, at no cost: `partition` those of the "
        "partition's previous batch run, so that materializing it again asks only rows that have "
        "changed or failed; `namespace` also those of the newest batch runs of the same model; "
        "`off` none.",
    ] = "partition"
    max_failure_rate: Annotated[
        float,
        "Share of failed rows (0 to 1) up to which a partition materializes. A partition of which "
        "no row was answered never materializes; one without rows always does.",
    ] = 0.1
    max_wait_hours: Annotated[
        float,
        "How long a batch run may make no progress before its requests end as failed.",
    ] = 30.0
    budget_usd: Annotated[
        float | None,
        "Budget of one batch run, in US dollars, its retries included; default: no bound. A "
        "request whose estimate exceeds it fails and sends nothing; a batch run that reaches it on "
        "the way is paused.",
    ] = None
    cancel_on_termination: Annotated[
        bool,
        "Whether cancelling the backfill, or terminating its hold or the request, cancels provider "
        "batches that no other request needs.",
    ] = True
    wait: Annotated[
        bool,
        "Whether the request waits for the answers and materializes them, holding its worker: for "
        "small jobs and the command line.",
    ] = False
    io_type: Annotated[
        Literal["lazy", "eager"],
        "`lazy` hands the IO manager a `LazyFrame`, `eager` a `DataFrame`.",
    ] = "lazy"
    checks: Annotated[
        BatchChecks | None,
        "The asset checks that come with the asset, with their bounds: `rows_answered`, "
        "`failure_rate`, `invalid_output_rate`, `cost_usd`; None (in YAML `false`): no checks.",
    ] = ALL_CHECKS
    column_lineage: Annotated[
        Mapping[str, Sequence[dg.TableColumnDep]] | None,
        "The upstream columns from which stored columns come. By default, if exactly one upstream "
        "input is a frame, kept columns and the id come from its columns of the same names, and "
        "the answers from the columns that the prompt template names; an empty mapping: no "
        "lineage.",
    ] = None


@options
class BatchAssetOptions(OptionsWithDefaults):
    """All options of a batch asset: how its rows are answered."""

    model: Annotated[str, "The provider's model, as `gpt-4.1-mini`."]


@options
class AssetKeywords:
    """The keywords of ``dagster.asset``, which describes them.

    Two have another default: ``description`` is the function's docstring, and ``kinds`` are ``llm``
    and the provider's name. With a ``backfill_policy`` the function is still called for each
    partition, and the rows of a Dagster run's partitions share provider batches: see
    ``docs/backfills.md``. ``retry_policy`` is for the request's step; the option ``retries`` says
    how often rows are sent again.
    """

    key: dg.AssetKey | str | Sequence[str] | None = None
    name: str | None = None
    key_prefix: str | Sequence[str] | None = None
    ins: Mapping[str, dg.AssetIn] | None = None
    deps: Iterable[Any] | None = None
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    backfill_policy: dg.BackfillPolicy | None = None
    group_name: str | None = None
    description: str | None = None
    metadata: Mapping[str, Any] | None = None
    tags: Mapping[str, str] | None = None
    owners: Sequence[str] | None = None
    kinds: AbstractSet[str] | None = None
    io_manager_key: str | None = None
    automation_condition: dg.AutomationCondition[Any] | None = None
    freshness_policy: dg.FreshnessPolicy | None = None
    retry_policy: dg.RetryPolicy | None = None
    code_version: str | None = None
    op_tags: Mapping[str, Any] | None = None
    pool: str | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option, as the decorator, the component and the docs read it.

    Attributes:
        annotation: The type.
        description: The description, in Markdown.
        field: The dataclass field, which has the default.
    """

    name: str
    annotation: Any
    description: str
    field: "Field[Any]"

    @property
    def is_required(self) -> bool:
        """Whether the option has no default."""
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self) -> Any:
        """The default; a new object each time."""
        make = self.field.default_factory
        return self.field.default if make is MISSING else make()


def options_in(owner: type[OptionsWithDefaults]) -> list[Option]:
    """Return the options of a class, required ones first."""
    types = get_type_hints(owner, include_extras=True)
    found = [
        Option(
            name=each.name,
            annotation=types[each.name].__origin__,
            description=types[each.name].__metadata__[0],
            field=each,
        )
        for each in fields(cast("Any", owner))
    ]
    return sorted(found, key=lambda option: not option.is_required)


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown keywords.

    Raises:
        ConfigurationError: A keyword is unknown; the text names the most similar option.
    """
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see docs/options.md for what there is"
            raise ConfigurationError(f"@batch_asset has no option {name!r}: {hint}")


def documented(docstring: str | None, options: Iterable[Option]) -> str:
    """Return a docstring with a section that describes the options, for ``help`` and editors."""
    described = "\n".join(
        textwrap.fill(
            f"{option.name}: {option.description}",
            width=96,
            initial_indent="    ",
            subsequent_indent="        ",
        )
        for option in options
    )
    return f"{inspect.cleandoc(docstring or '')}\n\nOptions:\n{described}\n"
