"""One real backfill that is held open, on the Dagster of ``scripts/test-dagster-versions``."""

import os
from pathlib import Path

import dagster
import pytest

from tests.deployment.backfilling import (
    BATCH_SECONDS,
    DAYS,
    finish,
    hold_over_two_looks,
    local_env,
    workspace,
)
from tests.deployment.projects.parts import ROWS
from tests.e2e.answers_story import hold_of
from tests.e2e.dagster_dev import DagsterDev
from tests.e2e.still_provider import provider_env, still_provider

VERSION = os.environ.get("BATCHOR_DAGSTER_VERSION")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(VERSION is None, reason="for scripts/test-dagster-versions, which sets it"),
]


def test_backfill_is_held_open_and_ends_in_success(tmp_path: Path) -> None:
    """On this Dagster, backfills would fail while their answers are being paid for."""
    assert dagster.__version__ == VERSION
    with still_provider(BATCH_SECONDS) as running:
        dev = DagsterDev(
            target=workspace(tmp_path, [("short", "short_project")]),
            env={**provider_env(running), **local_env(tmp_path)},
            home=tmp_path / "home",
        )
        with dev:
            backfill_id = dev.launch_backfill(["short_answers", "short_report"], DAYS)
            (held,) = hold_over_two_looks(dev, [backfill_id])
            assert (held.status, hold_of(held).status) == ("REQUESTED", "QUEUED")
            end = finish(dev, running, backfill_id)
        assert end.backfill.status == "COMPLETED_SUCCESS", end.timeline
        assert hold_of(end.backfill).status == "SUCCESS"
        assert len(running.ledger().entries()) == len(DAYS) * ROWS
