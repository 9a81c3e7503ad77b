"""Removing our files at the provider once nobody needs them."""

import logging
from collections.abc import Mapping
from typing import Any

from batchor_core.errors import ProviderError
from batchor_core.executor.cycle import Cycle

logger = logging.getLogger(__name__)


def remove_remote_files(
    cycle: Cycle, *, upload_ref: str | None, files: Mapping[str, Any] | None = None
) -> None:
    """Remove a request file and result files, unless the user keeps them.

    That this fails, or never happens because of a crash, costs storage there and nothing else.
    The request file of a submission that was given up goes too: should its create call still be
    under way against all odds, the provider finds no input, and nothing is paid.
    """
    if cycle.plan.job.artifact_policy.remote_files == "keep":
        return
    if upload_ref is None and not files:
        return
    try:
        cycle.plan.provider.delete_remote(upload_ref=upload_ref, result=files)
    except ProviderError as exc:
        logger.warning("run %s: remote files were not deleted: %s", cycle.run.run_id, exc)
