"""The page on structured output."""

import re

from scripts.generate_schema_table import PAGE, with_table


def test_table_is_up_to_date() -> None:
    """If it failed, the documentation would describe another version of the compiler."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run python scripts/generate_schema_table.py"


def test_example_runs() -> None:
    """If it failed, the first code that a user copies would not work."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
