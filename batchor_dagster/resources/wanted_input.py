"""Read an input's annotation, and give loaded partitions the shape that it asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import polars as pl
import pyarrow as pa

_FRAME_TYPES = (pl.DataFrame, pl.LazyFrame, pa.Table)
_OPEN_TYPES = (Any, object, None)


@dataclass(frozen=True, kw_only=True)
class WantedInput:
    """What an annotation asks for.

    Attributes:
        annotation: The annotation, without ``| None``.
        value_type: The type of one partition; ``Any``, ``object`` and None stand for any type.
        by_partition: Whether the input is a dict by partition key.
        is_optional: Whether the input is None if it has no partition at all.
    """

    annotation: Any
    value_type: Any
    by_partition: bool
    is_optional: bool

    @classmethod
    def of(cls, annotation: Any) -> "WantedInput":
        """Read an annotation; None: the input has none."""
        inner, is_optional = _without_none(annotation)
        origin = get_origin(inner) or inner
        by_partition = isinstance(origin, type) and issubclass(origin, Mapping)
        value_type = (*get_args(inner)[1:], Any)[0] if by_partition else inner
        return cls(
            annotation=inner,
            value_type=value_type,
            by_partition=by_partition,
            is_optional=is_optional,
        )

    @property
    def frame_type(self) -> type:
        """The type of frame of one partition.

        Raises:
            TypeError: The annotation asks for something else.
        """
        if self.value_type in _OPEN_TYPES:
            return pl.DataFrame
        if self.value_type in _FRAME_TYPES:
            assert isinstance(self.value_type, type)
            return self.value_type
        raise TypeError(
            f"a Parquet file cannot be loaded as {self.annotation!r}: annotate the input with "
            "pl.DataFrame, pl.LazyFrame, pa.Table or a dict[str, …] of one of them"
        )

    def shaped(self, values: Mapping[str, Any], *, is_single: bool, name: str) -> Any:
        """Return partitions as the annotation asks for them.

        Args:
            values: What was loaded, by partition key, in the order of the partitions.
            is_single: Whether exactly one partition belongs to the input, loaded or not.
            name: What an error calls the input.

        Raises:
            FileNotFoundError: There is no partition, and the annotation allows neither None nor a
                dict.
        """
        if self.by_partition or (self.value_type in _OPEN_TYPES and not is_single):
            return dict(values)
        if len(values) > 1:
            is_frame = self.value_type in _FRAME_TYPES
            return _concatenated(list(values.values())) if is_frame else dict(values)
        if values or self.is_optional:
            return next(iter(values.values()), None)
        raise FileNotFoundError(
            f"{name} has no partition to load: annotate the input with pl.DataFrame | None or "
            "dict[str, pl.DataFrame] where that may be"
        )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, UnionType):
        others = [other for other in get_args(annotation) if other is not type(None)]
        if len(others) == 1:
            return others[0], True
    return annotation, False


def _concatenated(frames: Sequence[Any]) -> Any:
    return pa.concat_tables(frames) if isinstance(frames[0], pa.Table) else pl.concat(frames)
