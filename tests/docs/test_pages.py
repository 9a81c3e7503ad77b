"""What the docs say is generated or executed, so that it cannot grow old."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_state_page_is_current() -> None:
    """The states page would show transitions that the store does not allow."""
    script = ROOT / "scripts" / "generate_state_page.py"
    command = [sys.executable, str(script), "--check"]
    finished = subprocess.run(command, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, "run scripts/generate_state_page.py"


def test_links_between_pages_lead_somewhere() -> None:
    """A reader would follow a link into nothing."""
    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for piece in page.read_text().split("](")[1:]:
            target = piece.split(")")[0].split("#")[0]
            if target and "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
