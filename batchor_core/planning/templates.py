"""Prompt templates: text in which ``{column}`` stands for the row's value, and nothing else.

The whole grammar: ``{name}``, where ``name`` is a Python identifier, is a placeholder. Braces
around a name are doubled to be literal: ``{{name}}`` is the text ``{name}``, and ``{{{name}}}``
is the value in braces. Every other brace is literal, so JSON in a prompt needs no escaping:
``{"a": {"b": 1}}`` passes as it is. There is no attribute access, no index and no format
specification: ``{user.name}`` and ``{price:.2f}`` are literal text. Values are never read as
templates again.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

import polars as pl

from batchor_core.errors import PromptTemplateError

_BRACED_NAME = re.compile(r"(\{+)([^\W\d]\w*)(\}+)")

_Part: TypeAlias = tuple[str, str | None]
"""Literal text before a placeholder, and the placeholder's column; None at the end."""


class PromptTemplate:
    """A parsed template.

    Args:
        text: The template.

    Attributes:
        text: The template as it was given.
        columns: The columns that it names, each once, in the order of first use.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parse(text)
        self.columns = tuple(dict.fromkeys(name for _, name in self._parts if name is not None))

    def __repr__(self) -> str:
        return f"PromptTemplate({self.text!r})"

    def check(self, available: Collection[str]) -> None:
        """Make sure that every column exists, before any row is rendered.

        Raises:
            PromptTemplateError: If one does not.
        """
        missing = [name for name in self.columns if name not in available]
        if missing:
            raise PromptTemplateError(
                f"the template names {', '.join(map(repr, missing))}, but the input has only "
                f"{', '.join(map(repr, available))}; write {{{{{missing[0]}}}}} if the braces are "
                "meant as text"
            )

    def render(self, row: Mapping[str, object]) -> str:
        """Fill in one row.

        None becomes empty text, numbers and dates are written as ``str`` writes them, booleans as
        ``true`` and ``false``, lists and structs as JSON.

        Raises:
            PromptTemplateError: If the row lacks a column or a value is binary.
        """
        try:
            return "".join(
                text if name is None else text + _as_text(row[name], name)
                for text, name in self._parts
            )
        except KeyError:
            self.check(row.keys())
            raise

    def render_frame(self, frame: pl.DataFrame) -> pl.Series:
        """Fill in every row of a frame; the same texts as `render`, in one pass.

        Returns:
            The prompts as a string series named ``prompt``, without nulls.

        Raises:
            PromptTemplateError: If the frame lacks a column or a value is binary.
        """
        self.check(frame.columns)
        if not self.columns:
            constant = "".join(text for text, _ in self._parts)
            return pl.Series("prompt", [constant] * frame.height, dtype=pl.String)
        texts = frame.select(_text_series(frame[name]) for name in self.columns)
        parts: list[pl.Expr] = []
        for text, name in self._parts:
            parts += [pl.lit(text)] if name is None else [pl.lit(text), pl.col(name)]
        return texts.select(pl.concat_str(parts).alias("prompt")).to_series()


def _parse(text: str) -> list[_Part]:
    parts: list[_Part] = []
    before = ""
    end = 0
    for match in _BRACED_NAME.finditer(text):
        opening, name, closing = match.groups()
        # Braces that do not pair up around the name are ordinary text: {"a": {b}} closes two.
        paired = min(len(opening), len(closing))
        before += text[end : match.start(2) - paired] + "{" * (paired // 2)
        if paired % 2:
            parts.append((before, name))
            before = ""
        else:
            before += name
        before += "}" * (paired // 2)
        end = match.end(2) + paired
    parts.append((before + text[end:], None))
    return parts


def _as_text(value: object, column: str) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case bytes() | bytearray() | memoryview():
            raise PromptTemplateError(
                f"column {column!r} is binary and cannot stand in a text; decode it first"
            )
        case pl.Series():
            return _as_text(value.to_list(), column)
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def _text_series(series: pl.Series) -> pl.Series:
    """The column as `render` writes its values; natively where Polars writes the same."""
    if series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum):
        return series.cast(pl.String).fill_null("")
    texts = [_as_text(value, series.name) for value in series.to_list()]
    return pl.Series(series.name, texts, dtype=pl.String)
