"""What can be set from the environment, with the defaults that suit a day's work."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

TICKETS = Path(os.environ.get("SUPPORT_TICKETS_DATA", PROJECT / "data" / "tickets"))
"""Folder with one CSV file of tickets per day, as ``2026-11-01.csv``."""

HOME = Path(os.environ.get("SUPPORT_TICKETS_HOME", PROJECT / "var"))
"""Where state, batch files and results are kept."""

SENSOR_SECONDS = int(os.environ.get("SUPPORT_TICKETS_SENSOR_SECONDS", "30"))
"""Seconds between two ticks of the sensors."""

POLL_SECONDS = float(os.environ.get("SUPPORT_TICKETS_POLL_SECONDS", "30"))
"""Seconds between two looks at a batch that the provider works on."""
