"""The pictures in the docs, which ``tests/browser`` takes."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def test_every_picture_is_shown_on_a_page() -> None:
    """Pictures that nobody sees would be taken, and carried along, for ever."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    taken = {path.name for path in PICTURES.iterdir()}
    assert taken
    assert {name for name in taken if f"pictures/{name})" not in text} == set()


def test_pictures_are_small() -> None:
    """Every clone would carry megabytes of screenshots."""
    sizes = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert {name: size for name, size in sizes.items() if size >= 200_000} == {}
