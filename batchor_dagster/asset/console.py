"""Links to provider batches in the providers' web consoles."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dagster as dg

from batchor_core import Run
from batchor_dagster.constants import (
    META_CONSOLE_LINKS,
    META_CONSOLE_URL,
    META_PROGRESS_CONSOLE_LINKS,
    META_PROGRESS_CONSOLE_URL,
)

_SHOWN_LINKS = 20
_DEFAULT_WORKSPACE = "default"
_VERTEX_JOB = re.compile(r"projects/([^/]+)/locations/([^/]+)/batchPredictionJobs/([^/]+)")


def console_metadata(
    run: Run, batches: Sequence[str], *, is_progress: bool = False
) -> dict[str, Any]:
    """Return links to provider batches: one as a URL, several as a Markdown list.

    Empty where no address is known.
    """
    workspace = getattr(run.plan.job.provider_config, "workspace", None)
    urls = {batch: console_url(run.record.account, batch, workspace) for batch in batches}
    known = {batch: url for batch, url in urls.items() if url}
    if not known:
        return {}
    if len(set(known.values())) == 1:
        key = META_PROGRESS_CONSOLE_URL if is_progress else META_CONSOLE_URL
        return {key: dg.MetadataValue.url(next(iter(known.values())))}
    lines = [f"- [{batch}]({url})" for batch, url in known.items()]
    if len(lines) > _SHOWN_LINKS:
        lines = [*lines[:_SHOWN_LINKS], f"- and {len(lines) - _SHOWN_LINKS} more"]
    key = META_PROGRESS_CONSOLE_LINKS if is_progress else META_CONSOLE_LINKS
    return {key: dg.MetadataValue.md("\n".join(lines))}


def console_url(account: str, batch: str, workspace: str | None = None) -> str | None:
    """Return the address of a provider batch, or of the list that it is in.

    Args:
        account: As stored with the batch run: provider, host, and what tells accounts apart. (The
            config does not know a host that the SDK took from its environment variable.)
        batch: The provider's id.
        workspace: Of Anthropic; default: the account's default workspace.

    Returns:
        None for other hosts (Azure, compatible ones, proxies) and for Gemini's Developer API.
    """
    provider, host, *_ = f"{account}::".split(":")
    match provider:
        case "openai" if host == "api.openai.com":
            return f"https://platform.openai.com/batches/{quote(batch, safe='')}"
        case "anthropic" if host == "api.anthropic.com":
            name = quote(workspace or _DEFAULT_WORKSPACE, safe="")
            return f"https://platform.claude.com/workspaces/{name}/batches"
        case "gemini" if host.endswith("aiplatform.googleapis.com"):
            return _vertex_url(batch)
    return None


def _vertex_url(batch: str) -> str | None:
    # As Google's own SDK composes it (google-cloud-aiplatform, jobs.py).
    found = _VERTEX_JOB.fullmatch(batch)
    if found is None:
        return None
    project, location, job = (quote(part, safe="") for part in found.groups())
    return (
        f"https://console.cloud.google.com/ai/platform/locations/{location}/batch-predictions/"
        f"{job}?project={project}"
    )
