"""``BatchParquetIOManager``: stores each partition as one Parquet file, on any fsspec URL.

``parquet_layout`` says where a file lies. Its footer names its asset and partition, so that no
other asset or partition loads or overwrites it.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from dagster import (
    AssetKey,
    ConfigurableIOManager,
    EnvVar,
    InputContext,
    MetadataValue,
    OutputContext,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
)
from pydantic import Field
from upath import UPath

from batchor_core import ConfigurationError
from batchor_dagster.asset.metadata import table_schema
from batchor_dagster.asset.partitions import in_order, numbered
from batchor_dagster.constants import (
    META_COLUMN_SCHEMA,
    META_PARTITION_ROW_COUNT,
    META_ROW_COUNT,
    META_SIZE_BYTES,
    META_URI,
)
from batchor_dagster.resources.asset_files import AssetFile, Written, uri_of
from batchor_dagster.resources.failed_rows import scan_failed_rows
from batchor_dagster.resources.parquet_layout import ParquetLayout
from batchor_dagster.resources.wanted_input import WantedInput

ALLOW_MISSING_PARTITIONS = "allow_missing_partitions"  # as Dagster's own IO managers call it


class BatchParquetIOManager(ConfigurableIOManager):
    """Stores frames as Parquet and loads them as the downstream asset's annotation asks.

    Outputs: a Polars ``DataFrame`` or ``LazyFrame`` (streamed), an Arrow ``Table`` or
    ``RecordBatchReader`` (streamed), or a pandas ``DataFrame`` (with the named levels of its
    index). An output that covers several partitions is a dict of these by partition key. A file
    appears whole or not at all: it is written under another name and renamed; for an object store
    it is written locally and uploaded at once.

    Metadata: ``dagster/uri``, ``dagster/column_schema`` (unless the output or the asset has its
    own), ``batchor/size_bytes``, and ``dagster/row_count`` or ``dagster/partition_row_count``; they
    replace the output's values of these keys. An output of several partitions gets no count, since
    Dagster would show it at each partition.

    Inputs: ``pl.DataFrame`` (also without an annotation), ``pl.LazyFrame`` or ``pa.Table``. For
    these annotations, several upstream partitions are concatenated in partition order; for
    ``dict[str, <one of these>]``, and without an annotation, they are a dict by partition key. A
    partition without a file is an error, unless the input has the metadata
    ``{"allow_missing_partitions": True}``. If the input has no partition at all, as on the first
    day of an asset that depends on its own yesterday, ``<one of these> | None`` gets None.

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
            TypeError: ``obj`` is none of the types above.
            ValueError: The keys of a dict are not the output's partitions.
            ConfigurationError: An existing file belongs to another asset or partition.
        """
        asset = _key_path(context)
        frames: Mapping[Any, object] = {None: obj}  # by partition
        if context.has_asset_partitions:
            frames = _frames_by_partition(context.asset_partition_keys, obj)
        files = {partition: self._file(asset, partition) for partition in frames}
        for file in files.values():
            file.refuse_foreign()
        written = [files[partition].write(frame) for partition, frame in frames.items()]
        for partition in frames:
            self._rejected_file(asset, partition).remove()
        if len(frames) == 1:
            ((partition, file),) = files.items()
            count = META_ROW_COUNT if partition is None else META_PARTITION_ROW_COUNT
            _describe(context, file.path, written[0], row_count_key=count)
        elif frames:
            # Dagster shows this metadata at every partition, so it cannot hold counts.
            _describe(context, self._layout.folder(asset), _sum(written), row_count_key=None)

    def load_input(self, context: InputContext) -> object:
        """Load a file, or the files of several partitions, in the annotated shape.

        Raises:
            FileNotFoundError: The asset, or one of the partitions, has no file.
            TypeError: The annotation is none of those above.
            ConfigurationError: A file belongs to another asset or partition.
        """
        wanted = WantedInput.of(context.dagster_type.typing_type)
        if not context.has_asset_partitions:
            file = self._file(_key_path(context), None)
            if not file.exists():
                raise FileNotFoundError(
                    f"{_name(context)} was not materialized yet: no {file.path}"
                )
            return file.load(wanted.frame_type)
        frames = self._load_partitions(context, wanted.frame_type)
        is_single = len(context.asset_partition_keys) == 1
        return wanted.shaped(frames, is_single=is_single, name=_name(context))

    def path_for(self, asset_key_path: Sequence[str], partition_key: str | None = None) -> UPath:
        """Return the path of the file of an asset or of one of its partitions."""
        return self._file(asset_key_path, partition_key).path

    def store_rejected(
        self, asset_key_path: Sequence[str], partition_key: str | None, frame: pl.LazyFrame
    ) -> str:
        """Write the table of a rejected partition, or asset, into the folder ``.rejected``.

        ``handle_output`` removes the file when the partition is stored.

        Returns:
            The file's URI.
        """
        file = self._rejected_file(asset_key_path, partition_key)
        file.write(frame)
        return file.uri

    def scan_failed(
        self,
        asset_key: AssetKey | str | Sequence[str],
        partition_keys: Sequence[str] | None = None,
    ) -> pl.LazyFrame:
        """Return the failed rows in the stored and the rejected tables of a batch asset.

        Beside the columns of the result table, which may differ between partitions, they have
        ``batch_partition`` (null for an asset without partitions) and ``batch_partition_state``:
        ``stored``, or ``rejected`` for rows of a rejected partition. A rejected partition has rows
        of both states if an earlier table of it is stored.

        Args:
            asset_key: The asset.
            partition_keys: Its partitions; None for all that have a file.

        Raises:
            FileNotFoundError: None of them has a file.
        """
        asset = AssetKey.from_coercible(asset_key).path
        return scan_failed_rows(self._layout, asset, partition_keys)

    def _load_partitions(self, context: InputContext, frame_type: type) -> dict[str, Any]:
        asset = _key_path(context)
        files = {key: self._file(asset, key) for key in _partition_keys(context)}
        missing = [key for key, file in files.items() if not file.exists()]
        if missing and not (context.definition_metadata or {}).get(ALLOW_MISSING_PARTITIONS, False):
            shown = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
            raise FileNotFoundError(
                f"{_name(context)} has no file for {len(missing)} of {len(files)} partitions "
                f"({shown}) in {self._layout.folder(asset)}: materialize them, or give the input "
                f"the metadata {{{ALLOW_MISSING_PARTITIONS!r}: True}}"
            )
        return {key: file.load(frame_type) for key, file in files.items() if key not in missing}

    @property
    def _layout(self) -> ParquetLayout:
        return ParquetLayout(base=UPath(self.base_path, **_from_environment(self.storage_options)))

    def _file(self, asset: Sequence[str], partition: str | None) -> AssetFile:
        return AssetFile.at(self._layout, asset, partition)

    def _rejected_file(self, asset: Sequence[str], partition: str | None) -> AssetFile:
        return AssetFile.at(self._layout.rejected, asset, partition)


def _key_path(context: InputContext | OutputContext) -> Sequence[str]:
    """Return the asset's key; for an op's output its run id, step and output name."""
    if context.has_asset_key:
        return context.asset_key.path
    upstream = context.upstream_output if isinstance(context, InputContext) else context
    if upstream is None:
        raise ValueError("the input has neither an asset key nor an upstream output")
    return upstream.get_identifier()


def _describe(
    context: OutputContext, path: UPath, written: Written, row_count_key: str | None
) -> None:
    metadata: dict[str, MetadataValue[Any]] = {
        META_URI: MetadataValue.text(uri_of(path)),
        META_SIZE_BYTES: MetadataValue.int(written.size_bytes),
    }
    if row_count_key is not None:
        metadata[row_count_key] = MetadataValue.int(written.rows)
    known = {**(context.definition_metadata or {}), **(context.output_metadata or {})}
    if META_COLUMN_SCHEMA not in known:  # it has descriptions, which a Polars frame loses
        schema = table_schema(written.schema)
        metadata[META_COLUMN_SCHEMA] = MetadataValue.table_schema(schema)
    context.add_output_metadata(metadata)


def _frames_by_partition(partition_keys: Sequence[str], obj: object) -> Mapping[str, object]:
    if isinstance(obj, Mapping):
        frames = {str(key): frame for key, frame in obj.items()}
        expected = {str(key) for key in partition_keys}
        if set(frames) != expected:
            missing, unknown = sorted(expected - set(frames)), sorted(set(frames) - expected)
            raise ValueError(
                f"the dict does not match the output's partitions: {missing!r} are missing, "
                f"{unknown!r} do not belong to it; a dict of columns is returned as "
                "pl.DataFrame(columns)"
            )
        return frames
    if len(partition_keys) != 1:
        raise TypeError(
            f"the output covers {len(partition_keys)} partitions: return a dict with one frame "
            f"for each partition key, not a {type(obj).__name__}"
        )
    return {str(partition_keys[0]): obj}


def _from_environment(value: Any) -> Any:
    """Return options with ``EnvVar``s replaced by their values, which Dagster does not do here."""
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


def _sum(written: Sequence[Written]) -> Written:
    return Written(
        rows=sum(one.rows for one in written),
        size_bytes=sum(one.size_bytes for one in written),
        schema=written[0].schema,
    )


def _partition_keys(context: InputContext) -> list[str]:
    """Return the input's keys in the order of the partitions, which a mapping may not keep."""
    keys = [str(key) for key in context.asset_partition_keys]
    definition = context.asset_partitions_def
    if len(keys) < 2 or isinstance(definition, TimeWindowPartitionsDefinition):  # these are sorted
        return keys
    is_static = isinstance(definition, StaticPartitionsDefinition)
    return in_order(keys, numbered(definition, None if is_static else context.instance))


def _name(context: InputContext) -> str:
    return repr(context.asset_key.to_user_string()) if context.has_asset_key else "the input"
