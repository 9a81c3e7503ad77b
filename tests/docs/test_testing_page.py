"""The page on testing: its example is a project whose tests are run, its table is held."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_complete_example(tmp_path: Path) -> None:
    """A reader's first tests would fail, or need a key."""
    project, conftest, tests, _ = BLOCKS
    (tmp_path / "reviews.py").write_text(project)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_reviews.py").write_text(tests)
    without_keys = {k: v for k, v in os.environ.items() if not k.endswith(("_KEY", "_STATE"))}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        check=False,
        cwd=tmp_path,
        env={**without_keys, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout
    assert "4 passed" in finished.stdout


def test_script_of_answers() -> None:
    """A reader would copy a call that is refused."""
    exec(compile(BLOCKS[3], "docs/testing.md", "exec"), {})


def test_names_are_those_of_the_simulator() -> None:
    """A reader would look for methods that are not there."""
    from batchor_core.simulator import Simulator

    listed = PAGE.split("## The simulator")[1]
    names = set(re.findall(r"`(\w+)\((?:[^`]*)\)`", listed))
    assert {"faults", "advance_time", "ledger", "answer", "clear_answers", "reset"} <= names
    assert all(hasattr(Simulator, name) for name in names)
