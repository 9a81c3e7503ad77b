"""The page on structured output."""

import re

from scripts.generate_schema_table import PAGE, with_table


def test_table_is_up_to_date() -> None:
    """If it failed, the documentation would describe another version of the compiler."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run python scripts/generate_schema_table.py"


def test_examples_run() -> None:
    """If it failed, the first code that a user copies would not work."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})


def test_table_tells_every_verdict_apart() -> None:
    """If it failed, a reader could not see which provider takes what."""
    for verdict in ("kept", "said", "rewritten", "refused"):
        assert f"**{verdict}**" in PAGE.read_text(encoding="utf-8")
