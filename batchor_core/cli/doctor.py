"""Looking for what would keep batch runs from working here."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import StatePlace, json_option, place_options
from batchor_core.clock import SystemClock
from batchor_core.doctor import Doctor, Finding, Health
from batchor_core.providers.anthropic.config import AnthropicProviderConfig
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.registry import ProviderConfig

_USUAL_MODELS = {
    "openai": "gpt-4.1-mini",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
}
_VARIABLES = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
}
_MARKS = {Health.OK: "ok", Health.WARNING: "warning", Health.ERROR: "ERROR"}


@click.command(cls=ExampleCommand, example="batchor doctor --provider openai --model gpt-4.1-mini")
@click.option(
    "--provider",
    type=click.Choice(list(_USUAL_MODELS)),
    help="Whose account to look at.  [default: those with a key in the environment, else those of "
    "earlier runs]",
)
@click.option("--model", metavar="M", help="Which model; without --provider, of OpenAI.")
@click.option("--base-url", metavar="URL", help="Where its API is, if not at the provider's.")
@place_options
@json_option
def doctor(
    *,
    provider: str | None,
    model: str | None,
    base_url: str | None,
    place: StatePlace,
    as_json: bool,
) -> Exit:
    """Check credentials, clock, state, files, vocabulary and prices.

    Tells what it finds, with a remedy for each fault, and the queue limits that providers have
    named so far. Nothing is sent to a model: a provider is asked for its list of batches.

    Exit status: 1 if runs cannot work here.
    """
    named = provider or ("openai" if model or base_url else None)
    configs = [_config(named, model, base_url)] if named else _in_environment()
    findings: list[Finding] = []
    for finding in Doctor(place.open, SystemClock()).examine(configs):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    elif not any(finding.about for finding in findings):
        click.echo("No account was looked at: give --provider, or set a key.")
    return Exit.ERROR if any(f.health is Health.ERROR for f in findings) else Exit.OK


def _in_environment() -> Sequence[ProviderConfig]:
    """Return the usual models of providers with credentials here; none: look at the runs."""
    has_key = [name for name, names in _VARIABLES.items() if any(map(os.environ.get, names))]
    return [_config(name, None, None) for name in has_key]


def _config(provider: str, model: str | None, base_url: str | None) -> ProviderConfig:
    named = model or _USUAL_MODELS[provider]
    if provider == "anthropic":
        return AnthropicProviderConfig(model=named, base_url=base_url, max_tokens=1)
    if provider == "gemini":
        return GeminiProviderConfig(model=named, base_url=base_url)
    return OpenAIProviderConfig(model=named, base_url=base_url)


def _print(finding: Finding) -> None:
    about = f" ({finding.about})" if finding.about else ""
    click.echo(f"{_MARKS[finding.health]:8}{finding.check}{about}: {finding.detail}")
    if finding.remedy:
        click.echo(f"{'':8}-> {finding.remedy}")
