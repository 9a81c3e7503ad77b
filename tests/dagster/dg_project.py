"""A project in the layout of ``create-dagster project``, in a folder of its own."""

import itertools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import dagster as dg

_NUMBERS = itertools.count()

_PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["dagster", "batchor-dagster"]

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{name}"
registry_modules = ["{name}.components.*"]
"""

_DEFINITIONS = '''\
"""What Dagster loads."""

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """Collect everything under ``defs``."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
'''


class DgProject:
    """A project folder; its Python package has a name that no other test's has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = f"project_{next(_NUMBERS)}"
        self.package = root / "src" / self.name
        self.defs = self.package / "defs"
        self.defs.mkdir(parents=True)
        (root / "pyproject.toml").write_text(_PYPROJECT.format(name=self.name))
        (self.package / "__init__.py").touch()
        (self.defs / "__init__.py").touch()
        (self.package / "definitions.py").write_text(_DEFINITIONS)

    def write(self, path: str, text: str) -> Path:
        """Write a file of the package; ``PROJECT`` in it stands for the package's name."""
        file = self.package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).replace("PROJECT", self.name))
        return file

    def component(self, name: str, kind: str, attributes: str) -> Path:
        """Write a ``defs.yaml``."""
        text = f"type: {kind}\nattributes:\n" + _indented(attributes)
        return self.write(f"defs/{name}/defs.yaml", text)

    def load(self) -> dg.Definitions:
        """Load the definitions as Dagster does."""
        with warnings.catch_warnings():
            # Dagster's of itself: it loads modules and reads YAML with functions that it warns of.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            warnings.filterwarnings("ignore", "`parse_obj_as` is deprecated")
            return dg.load_from_defs_folder(path_within_project=self.package)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in dedent(text).strip("\n").splitlines())


@contextmanager
def open_project(root: Path) -> Iterator[DgProject]:
    """A project whose package can be imported, and is forgotten afterwards."""
    project = DgProject(root)
    sys.path.insert(0, str(root / "src"))
    try:
        yield project
    finally:
        sys.path.remove(str(root / "src"))
        for name in [name for name in sys.modules if name.split(".")[0] == project.name]:
            del sys.modules[name]
