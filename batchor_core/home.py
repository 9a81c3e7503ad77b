"""Where state is kept when nothing is said."""

import os
import sys
from pathlib import Path

HOME_VARIABLE = "BATCHOR_HOME"


def default_home() -> Path:
    """Return ``$BATCHOR_HOME``, else the platform's folder for a user's application data."""
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "batchor"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "batchor"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "batchor"
