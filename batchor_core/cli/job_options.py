"""The job that a command line describes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from batchor_core.cli.options import Option, gathered
from batchor_core.errors import ConfigurationError, SourceError
from batchor_core.job import PromptBuilder, load_model
from batchor_core.model.items import BatchItem, File, Image, Part, PromptParts
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.planning.templates import PromptTemplate
from batchor_core.sources.files import open_source
from batchor_core.sources.parquet import ParquetItemSource
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
    """The file to be read, and what of it goes into the results."""

    path: str
    id_field: str | None
    keep: Sequence[str]

    def open(self) -> ItemSource:
        """Open the file; its names are checked here, before anything is recorded.

        Raises:
            SourceError: It cannot be read, or has not the columns that are named.
        """
        source = open_source(self.path, self.id_field)
        if not source.columns:
            raise SourceError(f"{source.label} has no rows")
        for name in self.keep:
            if name != KEEP_ALL:
                check_column(name, source.columns, source.label)
        return source

    def kept_types(self, source: ItemSource) -> Mapping[str, Any]:
        """Return the columns to keep: text, but for files that know their types."""
        columns = source.columns or ()
        names = columns if KEEP_ALL in self.keep else dict.fromkeys(self.keep)
        types = source.dtypes if isinstance(source, ParquetItemSource) else {}
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
        for name in filter(None, (self.prompt_field, self.image_field, self.file_field)):
            check_column(name, source.columns or (), source.label)
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
                parts.append(File(path=file) if _is_path(file) else File(url=file))
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
        "path",
        required=True,
        metavar="FILE",
        help="A .csv, .jsonl or .parquet file, or its URL; text may be compressed (.gz, .zst).",
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


def policy_options(command: Option) -> Option:
    """Offer how large chunks become, how often items are sent, and the clockwork."""
    return _chunk_options(_retry_options(_timing_options(command)))
