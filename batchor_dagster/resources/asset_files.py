"""One Parquet file of an asset or partition, whose footer names its owner."""

import glob
import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from upath import UPath

from batchor_core import ConfigurationError
from batchor_core.integration import make_folder, publish
from batchor_dagster.asset.pandas_frames import arrow_of_pandas, is_pandas_frame
from batchor_dagster.resources.parquet_layout import ParquetLayout

_LOCAL_PROTOCOLS = frozenset({"", "file", "local"})
_ASSET_ENTRY = "batchor/asset"  # both are stored in files, and never renamed
_PARTITION_ENTRY = "batchor/partition"

_WHAT_TO_RETURN = {
    "Series": "return series.to_frame()",
    "list": "return pl.DataFrame(rows)",
    "dict": "return pl.DataFrame(columns)",
    "NoneType": "return a frame, or annotate the function with -> None",
}


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The asset or partition whose rows a file holds.

    Attributes:
        asset: The asset's key, or the identifier of an op's output.
        partition: None for the whole asset.
    """

    asset: tuple[str, ...]
    partition: str | None = None

    def __str__(self) -> str:
        asset = repr("/".join(self.asset))
        return asset if self.partition is None else f"partition {self.partition!r} of {asset}"

    @classmethod
    def told_by(cls, entries: Mapping[bytes, bytes] | None) -> "Owner | None":
        """Read the owner from the entries of a footer; None if they name none."""
        asset = (entries or {}).get(_ASSET_ENTRY.encode())
        partition = (entries or {}).get(_PARTITION_ENTRY.encode())
        if asset is None:
            return None
        return cls(
            asset=tuple(json.loads(asset)),
            partition=None if partition is None else partition.decode(),
        )

    @property
    def entries(self) -> dict[str, str]:
        """The entries of a footer that name this owner."""
        asset = {_ASSET_ENTRY: json.dumps(self.asset)}
        return asset if self.partition is None else asset | {_PARTITION_ENTRY: self.partition}


@dataclass(frozen=True, kw_only=True)
class Written:
    """Rows, size and schema of one or more written files."""

    rows: int
    size_bytes: int
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class AssetFile:
    """The file of an asset or partition, which may exist or not.

    Attributes:
        path: The path.
        owner: The asset or partition whose file this is.
    """

    path: UPath
    owner: Owner

    @classmethod
    def at(cls, layout: ParquetLayout, asset: Sequence[str], partition: str | None) -> "AssetFile":
        """Return the file of an asset without partitions (None), or of one partition."""
        owner = Owner(asset=tuple(asset), partition=partition)
        return cls(path=layout.path(asset, partition), owner=owner)

    @property
    def uri(self) -> str:
        """The path as a URI."""
        return uri_of(self.path)

    def exists(self) -> bool:
        """Whether the file exists."""
        return bool(self.path.exists())

    def refuse_foreign(self) -> None:
        """Refuse an existing file that holds the rows of another asset or partition.

        A file that names no owner is accepted, and so is one that is no Parquet file.

        Raises:
            ConfigurationError: The file names another owner.
        """
        told = owner_of(self.path)
        if told is not None and told != self.owner:
            raise ConfigurationError(
                f"{self.uri} is the place of {self.owner}, and holds the rows of {told}: delete "
                "the file and materialize what belongs there; if it was renamed or moved on "
                "purpose, rewrite it with Polars, which leaves out whose it was"
            )

    def write(self, frame: object) -> Written:
        """Write the file, which appears whole or not at all.

        Raises:
            TypeError: ``frame`` is no frame or table that can be stored.
        """
        with _staged(self.path) as local:
            _write_local(local, frame, self.owner.entries)
            footer = pq.read_metadata(local)
            return Written(
                rows=footer.num_rows,
                size_bytes=local.stat().st_size,
                schema=footer.schema.to_arrow_schema(),
            )

    def load(self, frame_type: type) -> Any:
        """Return the file's rows as a ``pl.DataFrame``, ``pl.LazyFrame`` or ``pa.Table``.

        Raises:
            ConfigurationError: The file names another owner.
        """
        self.refuse_foreign()
        if self.path.protocol in _LOCAL_PROTOCOLS:
            return _load_local(Path(self.path.path), frame_type)
        if frame_type is pl.LazyFrame:
            # Polars' own cloud readers take other credentials than fsspec does.
            dataset = pads.dataset(self.path.path, filesystem=self.path.fs, format="parquet")
            return pl.scan_pyarrow_dataset(dataset)
        with self.path.open("rb") as file:
            if frame_type is pa.Table:
                return _without_owner(pq.read_table(file))
            return pl.read_parquet(file)

    def remove(self) -> None:
        """Delete the file if it exists."""
        if not self.exists():
            return
        if self.path.protocol in _LOCAL_PROTOCOLS:
            self.path.unlink()
        else:  # fsspec takes the path for a pattern, and older adlfs has no rm_file
            self.path.fs.rm(glob.escape(self.path.path))


def owner_of(path: UPath) -> Owner | None:
    """Return the owner that a file's footer names; None if it names none or there is no file."""
    try:
        with path.open("rb") as file:
            return Owner.told_by(pq.read_metadata(file).metadata)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None


def uri_of(path: UPath) -> str:
    """Return the path of a file or folder as a URI."""
    return Path(path.path).absolute().as_uri() if path.protocol in _LOCAL_PROTOCOLS else str(path)


@contextmanager
def _staged(path: UPath) -> Iterator[Path]:
    """Yield a local file to write; move or upload it to ``path`` if the block succeeds."""
    if path.protocol in _LOCAL_PROTOCOLS:
        target = Path(path.path)
        make_folder(target.parent)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            yield temporary
            publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="batchor-") as folder:
        temporary = Path(folder) / "data.parquet"
        yield temporary
        path.fs.put_file(str(temporary), path.path)


def _write_local(path: Path, frame: object, entries: dict[str, str]) -> None:
    match frame:
        case pl.DataFrame():
            frame.write_parquet(path, metadata=entries)
        case pl.LazyFrame():
            frame.sink_parquet(path, metadata=entries)
        case pa.Table():
            with _writer(path, frame.schema, entries) as writer:
                writer.write_table(frame)
        case pa.RecordBatchReader():
            with _writer(path, frame.schema, entries) as writer:
                for batch in frame:
                    writer.write_batch(batch)
        case _ if is_pandas_frame(frame):
            _write_local(path, arrow_of_pandas(frame), entries)
        case _:
            kind = type(frame).__name__
            instead = _WHAT_TO_RETURN.get(
                kind,
                "return a Polars DataFrame or LazyFrame, or an Arrow Table or RecordBatchReader",
            )
            raise TypeError(f"a {kind} cannot be stored as Parquet: {instead}")


def _writer(path: Path, schema: pa.Schema, entries: dict[str, str]) -> pq.ParquetWriter:
    ours = {key.encode(): value.encode() for key, value in entries.items()}
    # A table that was loaded from such a file may name another owner.
    named = schema.with_metadata(_other_entries(schema) | ours)
    return pq.ParquetWriter(path, named, compression="zstd")


def _load_local(path: Path, frame_type: type) -> Any:
    if frame_type is pl.LazyFrame:
        return pl.scan_parquet(path, glob=False)
    if frame_type is pl.DataFrame:
        return pl.read_parquet(path, glob=False)
    return _without_owner(pq.ParquetFile(path).read())


def _without_owner(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata(_other_entries(table.schema) or None)


def _other_entries(schema: pa.Schema) -> dict[bytes, bytes]:
    ours = {_ASSET_ENTRY.encode(), _PARTITION_ENTRY.encode()}
    return {key: value for key, value in (schema.metadata or {}).items() if key not in ours}
