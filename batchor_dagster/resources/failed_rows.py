"""Scan the failed rows of a batch asset in its stored and its rejected tables."""

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import polars as pl
from upath import UPath

from batchor_dagster.resources.asset_files import AssetFile, Owner, owner_of
from batchor_dagster.resources.parquet_layout import SUFFIX, ParquetLayout, is_of_partition

PARTITION_COLUMN = "batch_partition"
STATE_COLUMN = "batch_partition_state"
_STATUS_COLUMN = "batch_status"


def scan_failed_rows(
    layout: ParquetLayout, asset: Sequence[str], partitions: Sequence[str] | None
) -> pl.LazyFrame:
    """Return the failed rows of some partitions; None: of the asset and all its partitions.

    Raises:
        FileNotFoundError: None of them has a file.
    """
    frames = [
        _failed(file, state)
        for state, place in (("stored", layout), ("rejected", layout.rejected))
        for file in _files(place, asset, partitions)
    ]
    if not frames:
        raise FileNotFoundError(
            f"{'/'.join(asset)!r} has no stored and no rejected table in {layout.base}: "
            "materialize it first"
        )
    return pl.concat(frames, how="diagonal_relaxed")


def _failed(file: AssetFile, state: str) -> pl.LazyFrame:
    rows: pl.LazyFrame = file.load(pl.LazyFrame)
    return rows.filter(pl.col(_STATUS_COLUMN) == "failed").with_columns(
        pl.lit(file.owner.partition, dtype=pl.String).alias(PARTITION_COLUMN),
        pl.lit(state).alias(STATE_COLUMN),
    )


def _files(
    layout: ParquetLayout, asset: Sequence[str], partitions: Sequence[str] | None
) -> Iterator[AssetFile]:
    if partitions is None:
        whole = AssetFile.at(layout, asset, None)
        if whole.exists():
            yield whole
        yield from _partition_files(layout.folder(asset), asset)
        return
    for partition in partitions:
        file = AssetFile.at(layout, asset, str(partition))
        if file.exists():
            yield file


def _partition_files(folder: UPath, asset: Sequence[str]) -> Iterator[AssetFile]:
    for path in _listed(folder):
        if is_of_partition(path.name):
            told = owner_of(path)
            named = unquote(path.name.removesuffix(SUFFIX).partition("@")[0])
            owner = Owner(asset=tuple(asset), partition=told.partition if told else named)
            yield AssetFile(path=path, owner=owner)


def _listed(folder: UPath) -> list[UPath]:
    """List a folder anew: fsspec caches what it has listed."""
    folder.fs.invalidate_cache(folder.path)
    try:
        return sorted(folder.iterdir(), key=lambda path: str(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    finally:
        folder.fs.invalidate_cache(folder.path)
