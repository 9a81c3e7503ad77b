"""An IO manager that keeps each partition as one Parquet file, on any fsspec URL.

```
<base_path>/<asset key part>/…/<partition>.parquet     partitioned assets
<base_path>/<asset key part>/….parquet                 assets without partitions
```
Key parts and partition keys are percent-encoded into one path segment each.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from dagster import (
    ConfigurableIOManager,
    EnvVar,
    InputContext,
    MetadataValue,
    OutputContext,
    StaticPartitionsDefinition,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
    TimeWindowPartitionsDefinition,
)
from pydantic import Field
from upath import UPath

from batchor_core import ConfigurationError
from batchor_core.integration import path_segment
from batchor_dagster.asset.partitions import in_order, numbered
from batchor_dagster.constants import (
    META_COLUMN_SCHEMA,
    META_PARTITION_ROW_COUNT,
    META_ROW_COUNT,
    META_SIZE_BYTES,
    META_URI,
)

ALLOW_MISSING_PARTITIONS = "allow_missing_partitions"  # as Dagster's own IO managers call it
_LOCAL_PROTOCOLS = frozenset({"", "file", "local"})
_FRAME_TYPES = (pl.DataFrame, pl.LazyFrame, pa.Table)


class BatchParquetIOManager(ConfigurableIOManager):
    """Stores frames as Parquet and loads them as the downstream asset's annotation asks.

    Outputs: a Polars ``DataFrame`` or ``LazyFrame`` (streamed), an Arrow ``Table`` or
    ``RecordBatchReader`` (streamed); for an output that covers several partitions a dict of these,
    one for each partition key. A file appears whole or not at all: it is written under another
    name and renamed, on object stores written locally and put at once.

    Metadata: ``dagster/uri``, ``dagster/column_schema`` (unless the output or the asset brings its
    own), the size, and ``dagster/row_count`` or ``dagster/partition_row_count``; these replace what
    the output says under the same key. An output of several partitions gets no count, since
    Dagster would show it at each of them.

    Inputs: ``pl.DataFrame`` (also without an annotation), ``pl.LazyFrame`` or ``pa.Table``. Several
    upstream partitions are concatenated in partition order for these annotations, and are a dict by
    partition key for ``dict[str, <one of these>]`` and without an annotation. A partition
    without a file is an error, unless the input has the metadata
    ``{"allow_missing_partitions": True}``. Where there is no partition at all, as on the first day
    of an asset that depends on its own yesterday, ``<one of these> | None`` is given None.

    Attributes:
        base_path: A local path, or any URL that fsspec knows.
        storage_options: Passed to the fsspec file system, such as credentials; any value in it may
            be an ``EnvVar``.
    """

    base_path: str = Field(description="A local path, or any URL that fsspec knows.")
    storage_options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Passed to the fsspec file system."
    )

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write an output's file, or one file for each of its partitions.

        Raises:
            TypeError: ``obj`` is none of what is listed above.
            ValueError: A dict whose keys are not the output's partitions.
        """
        folder = self._asset_path(context)
        if not context.has_asset_partitions:
            path = _whole_path(folder)
            written = _write(path, obj)
            self._describe(context, path, written, row_count_key=META_ROW_COUNT)
            return
        frames = _frames_by_partition(context.asset_partition_keys, obj)
        paths = {key: _partition_path(folder, key) for key in frames}
        written_files = [_write(paths[key], frame) for key, frame in frames.items()]
        if len(frames) == 1:
            path = next(iter(paths.values()))
            self._describe(context, path, written_files[0], row_count_key=META_PARTITION_ROW_COUNT)
        elif frames:
            # What Dagster takes here goes to every partition alike, so counts have no place in it.
            self._describe(context, folder, _sum(written_files), row_count_key=None)

    def load_input(self, context: InputContext) -> object:
        """Load a file, or the files of several partitions, in the annotated shape.

        Raises:
            FileNotFoundError: The asset, or one of the partitions, was never stored here.
            TypeError: The annotation is none of what is listed above.
        """
        wanted = _Wanted.of(context.dagster_type.typing_type)
        folder = self._asset_path(context)
        if not context.has_asset_partitions:
            path = _whole_path(folder)
            if not path.exists():
                raise FileNotFoundError(f"{_name(context)} was not materialized yet: no {path}")
            return _load(path, wanted.frame_type)
        frames = _load_partitions(context, folder, wanted.frame_type)
        single = len(context.asset_partition_keys) == 1
        if wanted.by_partition or (wanted.is_open and not single):
            return frames
        if not frames and not wanted.is_optional:
            raise FileNotFoundError(
                f"{_name(context)} has no partition to load in {folder}: annotate the input with "
                "pl.DataFrame | None or dict[str, pl.DataFrame] where that may be"
            )
        if not frames:
            return None
        return _concatenated(list(frames.values()))

    def path_for(self, asset_key_path: Sequence[str], partition_key: str | None = None) -> UPath:
        """Return where the file of an asset, or of one of its partitions, is or would be."""
        folder = self._folder(asset_key_path)
        return (
            _whole_path(folder) if partition_key is None else _partition_path(folder, partition_key)
        )

    def _asset_path(self, context: InputContext | OutputContext) -> UPath:
        upstream = context.upstream_output if isinstance(context, InputContext) else context
        if context.has_asset_key:
            parts: Sequence[str] = context.asset_key.path
        elif upstream is not None:  # an op's output: run id, step and output name
            parts = upstream.get_identifier()
        else:
            raise ValueError("the input has neither an asset key nor an upstream output")
        return self._folder(parts)

    def _folder(self, parts: Sequence[str]) -> UPath:
        base: UPath = UPath(self.base_path, **_from_environment(self.storage_options))
        return base.joinpath(*map(path_segment, parts))

    def _describe(
        self, context: OutputContext, path: UPath, written: "_Written", row_count_key: str | None
    ) -> None:
        metadata: dict[str, MetadataValue[Any]] = {
            META_URI: MetadataValue.text(_uri(path)),
            META_SIZE_BYTES: MetadataValue.int(written.size_bytes),
        }
        if row_count_key is not None:
            metadata[row_count_key] = MetadataValue.int(written.rows)
        known = {**(context.definition_metadata or {}), **(context.output_metadata or {})}
        if META_COLUMN_SCHEMA not in known:  # theirs has descriptions that a Polars frame loses
            schema = _table_schema(written.schema)
            metadata[META_COLUMN_SCHEMA] = MetadataValue.table_schema(schema)
        context.add_output_metadata(metadata)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What came to be in one or more files."""

    rows: int
    size_bytes: int
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What an annotation asks for: which frames, and whether they come by partition."""

    frame_type: type
    by_partition: bool = False
    is_open: bool = False
    is_optional: bool = False

    @classmethod
    def of(cls, annotation: object) -> "_Wanted":
        if annotation in _FRAME_TYPES:
            assert isinstance(annotation, type)
            return cls(frame_type=annotation)
        if get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
            others = [other for other in get_args(annotation) if other is not type(None)]
            if len(others) == 1 and others[0] in _FRAME_TYPES:
                return cls(frame_type=others[0], is_optional=True)
        if annotation is Any or annotation is object or annotation is None:
            return cls(frame_type=pl.DataFrame, is_open=True)
        origin = get_origin(annotation) or annotation
        if isinstance(origin, type) and issubclass(origin, Mapping):
            values = get_args(annotation)[1:]
            if not values or values[0] is Any:
                return cls(frame_type=pl.DataFrame, by_partition=True)
            if values[0] in _FRAME_TYPES:
                return cls(frame_type=values[0], by_partition=True)
        raise TypeError(
            f"a Parquet file cannot be loaded as {annotation!r}: annotate the input with "
            "pl.DataFrame, pl.LazyFrame, pa.Table or a dict[str, …] of one of them"
        )


def _frames_by_partition(partition_keys: Sequence[str], obj: object) -> Mapping[str, object]:
    if isinstance(obj, Mapping):
        frames = {str(key): frame for key, frame in obj.items()}
        expected = {str(key) for key in partition_keys}
        if set(frames) != expected:
            missing, unknown = sorted(expected - set(frames)), sorted(set(frames) - expected)
            raise ValueError(
                f"the dict does not match the output's partitions: {missing!r} are missing, "
                f"{unknown!r} do not belong to it"
            )
        return frames
    if len(partition_keys) != 1:
        raise TypeError(
            f"the output covers {len(partition_keys)} partitions: return a dict with one frame "
            f"for each partition key, not a {type(obj).__name__}"
        )
    return {str(partition_keys[0]): obj}


def _from_environment(value: Any) -> Any:
    """Return options with their variables' values: Dagster looks into typed settings only."""
    if isinstance(value, EnvVar):
        return _variable(value.env_var_name)
    if not isinstance(value, dict):
        return value
    if value.keys() == {"env"}:  # what Dagster makes of an EnvVar
        return _variable(value["env"])
    return {name: _from_environment(inner) for name, inner in value.items()}


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigurationError(f"the environment variable {name} is not set") from None


def _whole_path(folder: UPath) -> UPath:
    return folder.with_name(f"{folder.name}.parquet")


def _partition_path(folder: UPath, partition_key: str) -> UPath:
    # A multi-partition key's text has its dimensions in alphabetical order, joined by "|".
    return folder / f"{path_segment(str(partition_key))}.parquet"


def _write(path: UPath, frame: object) -> _Written:
    with _staged(path) as local:
        _write_local(local, frame)
        footer = pq.read_metadata(local)
        return _Written(
            rows=footer.num_rows,
            size_bytes=local.stat().st_size,
            schema=footer.schema.to_arrow_schema(),
        )


@contextmanager
def _staged(path: UPath) -> Iterator[Path]:
    """Yield a local file to write; it takes its place at ``path`` if the block succeeds."""
    if path.protocol in _LOCAL_PROTOCOLS:
        target = Path(path.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="batchor-") as folder:
        temporary = Path(folder) / "data.parquet"
        yield temporary
        path.fs.put_file(str(temporary), path.path)


def _write_local(path: Path, frame: object) -> None:
    match frame:
        case pl.DataFrame():
            frame.write_parquet(path)
        case pl.LazyFrame():
            frame.sink_parquet(path)
        case pa.Table():
            pq.write_table(frame, path, compression="zstd")
        case pa.RecordBatchReader():
            with pq.ParquetWriter(path, frame.schema, compression="zstd") as writer:
                for batch in frame:
                    writer.write_batch(batch)
        case _:
            raise TypeError(
                f"a {type(frame).__name__} cannot be stored as Parquet: return a Polars DataFrame "
                "or LazyFrame, or an Arrow Table or RecordBatchReader"
            )


def _sum(written: Sequence[_Written]) -> _Written:
    return _Written(
        rows=sum(one.rows for one in written),
        size_bytes=sum(one.size_bytes for one in written),
        schema=written[0].schema,
    )


def _load_partitions(context: InputContext, folder: UPath, frame_type: type) -> dict[str, Any]:
    paths = {key: _partition_path(folder, key) for key in _partition_keys(context)}
    missing = [key for key, path in paths.items() if not path.exists()]
    if missing and not (context.definition_metadata or {}).get(ALLOW_MISSING_PARTITIONS, False):
        shown = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise FileNotFoundError(
            f"{_name(context)} has no file for {len(missing)} of {len(paths)} partitions "
            f"({shown}) in {folder}: materialize them, or give the input the metadata "
            f"{{{ALLOW_MISSING_PARTITIONS!r}: True}}"
        )
    return {key: _load(path, frame_type) for key, path in paths.items() if key not in missing}


def _partition_keys(context: InputContext) -> list[str]:
    """Return the keys in the order of the partitions; a mapping may give them in any."""
    keys = [str(key) for key in context.asset_partition_keys]
    definition = context.asset_partitions_def
    if len(keys) < 2 or isinstance(definition, TimeWindowPartitionsDefinition):  # these are sorted
        return keys
    is_static = isinstance(definition, StaticPartitionsDefinition)
    return in_order(keys, numbered(definition, None if is_static else context.instance))


def _load(path: UPath, frame_type: type) -> Any:
    if path.protocol in _LOCAL_PROTOCOLS:
        return _load_local(Path(path.path), frame_type)
    if frame_type is pl.LazyFrame:
        # Polars' own cloud readers take other credentials than fsspec does.
        dataset = pads.dataset(path.path, filesystem=path.fs, format="parquet")
        return pl.scan_pyarrow_dataset(dataset)
    with path.open("rb") as file:
        return pq.read_table(file) if frame_type is pa.Table else pl.read_parquet(file)


def _load_local(path: Path, frame_type: type) -> Any:
    if frame_type is pl.LazyFrame:
        return pl.scan_parquet(path, glob=False)
    if frame_type is pl.DataFrame:
        return pl.read_parquet(path, glob=False)
    return pq.ParquetFile(path).read()


def _concatenated(frames: Sequence[Any]) -> Any:
    if len(frames) == 1:
        return frames[0]
    return pa.concat_tables(frames) if isinstance(frames[0], pa.Table) else pl.concat(frames)


def _table_schema(schema: pa.Schema) -> TableSchema:
    return TableSchema(
        columns=[
            TableColumn(
                name=field.name,
                type=str(field.type),
                description=(field.metadata or {}).get(b"description", b"").decode() or None,
                constraints=TableColumnConstraints(nullable=field.nullable),
            )
            for field in schema
        ]
    )


def _uri(path: UPath) -> str:
    return Path(path.path).absolute().as_uri() if path.protocol in _LOCAL_PROTOCOLS else str(path)


def _name(context: InputContext) -> str:
    return repr(context.asset_key.to_user_string()) if context.has_asset_key else "the input"
