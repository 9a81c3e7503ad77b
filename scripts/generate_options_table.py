"""Write the table of options in ``docs/options.md`` from the model that they are made from.

Run ``python scripts/generate_options_table.py`` after a change to ``BatchAssetOptions``; a test
fails while the page is out of date.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from batchor_dagster.asset.options import BatchAssetOptions, Option, options_in

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
BEGIN, END = "<!-- generated table: begin -->", "<!-- generated table: end -->"


def table() -> str:
    """The table as Markdown."""
    lines = ["| option | type | default | |", "|---|---|---|---|"]
    for option in options_in(BatchAssetOptions):
        cells = [f"`{option.name}`", _type(option.annotation), _default(option)]
        lines.append(f"| {' | '.join([*cells, _cell(option.description)])} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the present table between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _type(annotation: Any) -> str:
    return f"`{_cell(_name(annotation))}`"


def _name(annotation: Any) -> str:
    """What a type is called in a few words; that it may be None is told by the default."""
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, UnionType) or str(origin) == "typing.Union":
        return " | ".join(_name(arg) for arg in args if arg is not type(None))
    if origin is Literal:
        return " | ".join(map(repr, args))
    if origin is type:
        return f"type[{_name(args[0])}]"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping"
    return "function" if origin is not None else str(annotation.__name__)


def _default(option: Option) -> str:
    if option.is_required:
        return "required"
    if option.default is None:
        return ""
    plain = isinstance(option.default, (str, bool, int, float))
    if plain:
        return f"`{option.default}`"
    return f"`{type(option.default).__name__}()`" if option.default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
