"""The sources of a component's rows: an upstream asset, files or a query."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import dagster as dg
import polars as pl
from pydantic import Field, SkipValidation

from batchor_core import ItemSource, SqlItemSource, open_source
from batchor_dagster.components.fields import python_object, resolved, secret_text

_PARTITION_KEY = "{partition_key}"
_FRAMES = {"eager": pl.DataFrame, "lazy": pl.LazyFrame, "any": Any}


class AssetSource(dg.Model):
    """The frame of an upstream asset."""

    asset: str = Field(description="Key of the upstream asset, as a/b.")
    load_as: Literal["eager", "lazy", "any"] = Field(
        default="eager",
        description="Which frame its IO manager is asked for: a Polars DataFrame, a LazyFrame, or "
        "whatever it gives.",
    )
    partition_mapping: Any = Field(
        default=None,
        description="Python object (package.module:name), where partitions are not those of the "
        "same keys.",
    )

    @property
    def annotation(self) -> Any:
        """The type of frame that the IO manager has to load."""
        return _FRAMES[self.load_as]

    @property
    def asset_in(self) -> dg.AssetIn:
        """The input as ``dagster.AssetIn``."""
        return dg.AssetIn(
            key=dg.AssetKey.from_user_string(self.asset), partition_mapping=self.partition_mapping
        )


class FileSource(dg.Model):
    """A CSV, JSON Lines or Parquet file; a folder or a pattern of such files."""

    path: str = Field(
        description="Path or fsspec URL of a file, a folder or a pattern. A relative path starts "
        "at the folder of the defs.yaml; {partition_key} stands for the partition.",
    )
    encoding: str = Field(default="utf-8", description="Of CSV and JSON Lines.")

    def open(self, partition_key: str | None, id_column: str | None) -> ItemSource:
        """Return the source of a partition's rows."""
        path = self.path
        if partition_key is not None:
            path = path.replace(_PARTITION_KEY, partition_key)
        return open_source(path, id_column, encoding=self.encoding)


class SqlSource(dg.Model):
    """The rows of a query."""

    LATE_FIELDS: ClassVar[frozenset[str]] = frozenset({"database"})

    database: Annotated[str, SkipValidation] = Field(
        description='SQLAlchemy URL, usually "{{ env.NAME }}".'
    )
    query: str = Field(description="SQL; :partition_key stands for the partition.")
    order_by: str | None = Field(
        default=None,
        description="A unique column of whole numbers or text, by which reading can go on in the "
        "middle; without it the rows are first copied into a temporary file.",
    )

    def open(self, partition_key: str | None, id_column: str | None) -> ItemSource:
        """Return the source of a partition's rows."""
        has_parameter = partition_key is not None and ":partition_key" in self.query
        return SqlItemSource(
            secret_text(self.database),
            self.query,
            id_column,
            order_by=self.order_by,
            parameters={"partition_key": partition_key} if has_parameter else None,
        )


Source = AssetSource | FileSource | SqlSource


def read_source(context: dg.ResolutionContext, value: Any) -> Any:
    """Read a source; its relative path starts at the folder of the ``defs.yaml``."""
    found = resolved(context, value)
    if isinstance(found, FileSource) and "://" not in found.path:
        path = context.resolve_source_relative_path(found.path)
        return found.model_copy(update={"path": str(Path(path))})
    if isinstance(found, AssetSource) and isinstance(found.partition_mapping, str):
        mapping = python_object(context, found.partition_mapping)
        return found.model_copy(update={"partition_mapping": mapping})
    return found
