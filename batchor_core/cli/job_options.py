"""The job that a command line describes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click
from pydantic import BaseModel

from batchor_core.cli.options import Option, gathered
from batchor_core.errors import ConfigurationError, SourceError
from batchor_core.job import BatchJob, PromptBuilder, load_model
from batchor_core.model.items import BatchItem, File, Image, Part, PromptParts
from batchor_core.model.policies import BudgetPolicy, ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.planning.templates import PromptTemplate
from batchor_core.sources.composite import CompositeItemSource
from batchor_core.sources.files import open_source
from batchor_core.sources.protocol import ItemSource
from batchor_core.sources.row_ids import check_column

KEEP_ALL = "all"

_COUNT = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0)
_SOME_SECONDS = click.FloatRange(min=0, min_open=True)
_RETRIES = RetryPolicy()
_TIMING = TimingPolicy()


@dataclass(frozen=True, kw_only=True)
class Input:
    """The files to be read, and what of them goes into the results."""

    paths: Sequence[str]
    encoding: str
    id_field: str | None
    keep: Sequence[str]

    def open(self) -> ItemSource:
        """Open the files; their names are checked here, before anything is recorded.

        Raises:
            SourceError: One cannot be read, or has not the columns that are named.
        """
        sources = [open_source(p, self.id_field, encoding=self.encoding) for p in self.paths]
        for each in sources:
            if not each.columns:
                raise SourceError(f"{each.label} has no rows")
        source = sources[0] if len(sources) == 1 else CompositeItemSource(sources)
        _check_columns(source, [name for name in self.keep if name != KEEP_ALL])
        return source

    def kept_types(self, source: ItemSource) -> Mapping[str, Any]:
        """Return the columns to keep: text, but for files that know their types."""
        columns = source.columns or ()
        names = columns if KEEP_ALL in self.keep else dict.fromkeys(self.keep)
        types = getattr(source, "dtypes", {})
        return {name: types.get(name, "string") for name in names}


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How a row becomes a prompt."""

    prompt_field: str | None
    prompt_template: str | None
    system: str | None
    image_field: str | None
    file_field: str | None

    def __post_init__(self) -> None:
        if (self.prompt_field is None) == (self.prompt_template is None):
            raise click.UsageError("Give one of --prompt-field and --prompt-template.")

    def job_fields(self, source: ItemSource) -> dict[str, Any]:
        """Return what a ``BatchJob`` is told of it.

        Raises:
            MissingColumnError: The prompt's column is not in the input.
        """
        given = (self.prompt_field, self.image_field, self.file_field)
        _check_columns(source, [name for name in given if name])
        if self.prompt_field is None:
            prompt: dict[str, Any] = {"prompt_template": self.prompt_template}
        else:
            prompt = _prompt_of_column(self.prompt_field)
        if self.image_field or self.file_field:
            prompt = {"build_prompt": self._with_media(prompt)}
        return {**prompt, "system_prompt": self.system}

    def _with_media(self, prompt: Mapping[str, Any]) -> PromptBuilder:
        """Return what puts a row's picture and document before its text."""
        template = PromptTemplate(prompt.get("prompt_template") or "")
        own = prompt.get("build_prompt")

        def build_prompt(item: BatchItem) -> PromptParts:
            parts: list[Part] = []
            if self.image_field and (image := item.payload[self.image_field]):
                parts.append(Image(path=image) if _is_path(image) else Image(url=image))
            if self.file_field and (file := item.payload[self.file_field]):
                parts.append(_document(file))
            text = template.render(item.payload) if own is None else own(item)
            return PromptParts(prompt=[*parts, text])

        return build_prompt


@dataclass(frozen=True, kw_only=True)
class Output:
    """What an answer has to look like."""

    structured_output_class: str | None
    output_schema: str | None
    schema_name: str | None

    def __post_init__(self) -> None:
        if self.structured_output_class and self.output_schema:
            raise click.UsageError("Give --structured-output-class or --output-schema, not both.")
        if self.schema_name and not (self.structured_output_class or self.output_schema):
            raise click.UsageError(
                "Give --structured-output-class or --output-schema with --schema-name."
            )

    def job_fields(self) -> dict[str, Any]:
        """Return what a ``BatchJob`` is told of it.

        Raises:
            ModelNotImportableError: There is no such class.
            ConfigurationError: The schema's file cannot be read.
        """
        output: type[BaseModel] | Mapping[str, Any] | None = None
        if self.structured_output_class is not None:
            output = load_model(self.structured_output_class)
        elif self.output_schema is not None:
            output = _read_schema(Path(self.output_schema))
        return {"structured_output": output, "schema_name": self.schema_name}


def _read_schema(path: Path) -> Mapping[str, Any]:
    try:
        decoded = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the schema {str(path)!r} cannot be read: {error}") from error
    if not isinstance(decoded, dict):
        raise ConfigurationError(f"{str(path)!r} holds no JSON Schema: an object is expected")
    return decoded


def _check_columns(source: ItemSource, names: Sequence[str]) -> None:
    if isinstance(source, CompositeItemSource):
        source.require(names)
        return
    for name in names:
        check_column(name, source.columns or (), source.label)


def _document(address: str) -> File:
    """Return a document; PDF is what all providers read.

    Raises:
        SourceError: It is another file, by its name.
    """
    if PurePosixPath(address.partition("?")[0]).suffix.lower() not in ("", ".pdf"):
        raise SourceError(f"{address!r} is no PDF file; pictures go into --image-field")
    return File(path=address) if _is_path(address) else File(url=address)


def _is_path(address: str) -> bool:
    """Whether a picture or document is read here; the provider fetches what has a web address."""
    return not address.startswith(("http://", "https://", "data:"))


def _prompt_of_column(name: str) -> dict[str, Any]:
    """Return the template of one column; where no template can name it, a function that is one."""
    template = f"{{{name}}}"
    if PromptTemplate(template).columns == (name,):
        return {"prompt_template": template}
    renamed = PromptTemplate("{value}")

    def build_prompt(item: BatchItem) -> str:
        return renamed.render({"value": item.payload[name]})

    return {"build_prompt": build_prompt}


input_options = gathered(
    Input,
    "rows",
    click.option(
        "--input",
        "paths",
        required=True,
        multiple=True,
        metavar="FILE",
        help="A .csv, .jsonl or .parquet file, a folder of such, a pattern ('in/*.csv'), or a URL; "
        "text may be compressed (.gz, .zst). May be repeated: ids then begin with '0:', '1:', …",
    ),
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        metavar="NAME",
        help="Encoding of CSV and JSON Lines.",
    ),
    click.option(
        "--id-field",
        metavar="COL",
        help="Column of the rows' keys, unique in the file.  [default: the row's number]",
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="COL|all",
        help="Column to keep in the results. May be repeated; 'all' keeps every column.",
    ),
)

prompt_options = gathered(
    Prompts,
    "prompts",
    click.option("--prompt-field", metavar="COL", help="Column that holds the prompts."),
    click.option(
        "--prompt-template",
        metavar="TEXT",
        help="The prompt, where {COL} stands for the row's value.",
    ),
    click.option("--system", metavar="TEXT", help="Instructions that precede every prompt."),
    click.option(
        "--image-field",
        metavar="COL",
        help="Column of pictures that go before the prompts: paths, or URLs.",
    ),
    click.option("--file-field", metavar="COL", help="The same for documents, as PDF files."),
)

output_options = gathered(
    Output,
    "output",
    click.option(
        "--structured-output-class",
        metavar="PKG.MOD:CLASS",
        help="Pydantic model that every answer has to satisfy.",
    ),
    click.option(
        "--output-schema",
        metavar="FILE",
        help="JSON Schema that every answer has to satisfy, in place of a model.",
    ),
    click.option("--schema-name", metavar="NAME", help="Its name at the provider."),
)

_chunk_options = gathered(
    ChunkPolicy,
    "chunk_policy",
    click.option(
        "--chunk-max-requests",
        "max_requests",
        type=_COUNT,
        metavar="N",
        help="Requests in one provider batch.  [default: as many as it takes]",
    ),
    click.option(
        "--chunk-max-bytes", "max_bytes", type=_COUNT, metavar="N", help="Bytes in one batch."
    ),
    click.option(
        "--chunk-max-tokens",
        "max_tokens",
        type=_COUNT,
        metavar="N",
        help="Input tokens in one batch.",
    ),
)

_retry_options = gathered(
    RetryPolicy,
    "retry_policy",
    click.option(
        "--max-attempts",
        type=_COUNT,
        default=_RETRIES.max_attempts,
        show_default=True,
        metavar="N",
        help="Paid requests of an item that did not end ok.",
    ),
    click.option(
        "--max-rounds",
        type=_COUNT,
        default=_RETRIES.max_rounds,
        show_default=True,
        metavar="N",
        help="Passes over the items, the first included.",
    ),
    click.option(
        "--retry-delay",
        "delay_s",
        type=_SECONDS,
        default=_RETRIES.delay_s,
        show_default=True,
        metavar="S",
        help="Seconds before the second pass; doubled for each further one.",
    ),
)

_timing_options = gathered(
    TimingPolicy,
    "timing",
    click.option(
        "--poll-interval",
        "poll_s",
        type=_SOME_SECONDS,
        default=_TIMING.poll_s,
        show_default=True,
        metavar="S",
        help="How often the provider is asked.",
    ),
    click.option(
        "--settle-seconds",
        "settle_s",
        type=_SECONDS,
        default=_TIMING.settle_s,
        show_default=True,
        metavar="S",
        help="How long a batch of unknown fate is looked for before it is sent again.",
    ),
    click.option(
        "--lease-seconds",
        "lease_s",
        type=_SOME_SECONDS,
        default=_TIMING.lease_s,
        show_default=True,
        metavar="S",
        help="How long a silent process keeps the run.",
    ),
)


def _amount(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter("give US dollars above 0.")
    return value


budget_options = gathered(
    BudgetPolicy,
    "budget",
    click.option(
        "--budget-usd",
        "run_usd",
        type=float,
        callback=_amount,
        metavar="X",
        help="What the run may cost, in US dollars; nothing is sent if its estimate is more.",
    ),
    click.option(
        "--budget-day-usd",
        "scope_day_usd",
        type=float,
        callback=_amount,
        metavar="X",
        help="What all runs of this account and model may cost in one day (UTC).",
    ),
)


def job_of(rows: Input, prompts: Prompts, output: Output, **settings: Any) -> BatchJob:
    """Return the job that these options describe.

    Args:
        rows: The input.
        prompts: How its rows become prompts.
        output: What answers have to look like.
        settings: Further fields of the job.

    Raises:
        ConfigurationError: It cannot work.
    """
    source = rows.open()
    return BatchJob(
        items=source,
        keep=rows.kept_types(source),
        **prompts.job_fields(source),
        **output.job_fields(),
        **settings,
    )


def policy_options(command: Option) -> Option:
    """Offer how large chunks become, how often items are sent, and the clockwork."""
    return _chunk_options(_retry_options(_timing_options(command)))
