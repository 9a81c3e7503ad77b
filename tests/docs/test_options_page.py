"""The page on the options of a batch asset."""

from batchor_dagster.asset.options import AssetKeywords
from scripts.generate_options_table import PAGE, with_table


def test_table_is_up_to_date() -> None:
    """A reader would look for an option that is called otherwise, or has another default."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run python scripts/generate_options_table.py"


def test_what_dagster_knows_is_named() -> None:
    """A reader would believe that a keyword of Dagster's is not passed on."""
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in AssetKeywords.__annotations__)
