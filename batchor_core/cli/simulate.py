"""Serving the simulated provider."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import gathered
from batchor_core.simulator import FaultError, SimulatorOptions, environment_of, serve
from batchor_core.simulator.fault_kinds import FAULT_KINDS

_DEFAULTS = SimulatorOptions()
_SECONDS = click.FloatRange(min=0)
_COUNT = click.IntRange(min=1)


_behaviour = gathered(
    SimulatorOptions,
    "options",
    click.option(
        "--batch-seconds",
        type=_SECONDS,
        default=_DEFAULTS.batch_seconds,
        show_default=True,
        metavar="S",
        help="How long a batch takes.",
    ),
    click.option(
        "--max-requests-per-batch",
        type=_COUNT,
        metavar="N",
        help="Batches with more requests fail.  [default: the provider's own limit]",
    ),
    click.option(
        "--max-file-bytes",
        type=_COUNT,
        metavar="N",
        help="Larger files or calls are refused.  [default: the provider's own limit]",
    ),
    click.option(
        "--enqueued-token-limit",
        type=_COUNT,
        metavar="N",
        help="Input tokens of one model in progress at a time; batches above fail.",
    ),
    click.option(
        "--enqueued-request-limit",
        type=_COUNT,
        metavar="N",
        help="Requests in progress at a time, where the provider counts them (Anthropic).",
    ),
    click.option(
        "--seed",
        type=int,
        default=_DEFAULTS.seed,
        show_default=True,
        metavar="N",
        help="Another seed gives other answers.",
    ),
    click.option("--api-key", metavar="KEY", help="The only key accepted.  [default: any]"),
    click.option(
        "--gcs-endpoint",
        metavar="URL",
        help="A stand-in for Google Cloud Storage, which jobs of Vertex AI read and write.",
    ),
    click.option("--shuffle-output", is_flag=True, help="Write result lines out of order."),
)


@click.command(
    cls=ExampleCommand,
    example=(
        "batchor simulate --port 8800 --batch-seconds 5 \\\n"
        '  --fault \'{"kind": "line_error", "status": 500, "times": 3}\''
    ),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port on 127.0.0.1.  [default: a free one]",
)
@_behaviour
@click.option(
    "--fault",
    "faults",
    callback=lambda _, __, values: [_fault_rule(value) for value in values],
    multiple=True,
    metavar="KIND|JSON",
    help="Something that goes wrong: a kind as 'refusal', or a rule as JSON. May be repeated.",
)
def simulate(*, port: int, options: SimulatorOptions, faults: Sequence[Mapping[str, Any]]) -> Exit:
    """Serve a simulated provider.

    Speaks the provider's own protocol on this machine, until it is interrupted. No model is
    involved: answers are made up, the same for the same request, and nothing is billed.
    """

    def announce(base_url: str) -> None:
        click.echo(f"# Simulated provider at {base_url}: no model is involved, nothing is billed.")
        click.echo("# Ctrl-C ends it. Use it from another shell with:")
        for name, value in environment_of(base_url, options.api_key).items():
            click.echo(f"export {name}={value}")

    try:
        serve(port=port, options=options, faults=faults, on_ready=announce)
    except FaultError as error:
        raise click.BadParameter(str(error), param_hint="'--fault'") from error
    except OSError as error:
        raise click.ClickException(
            f"cannot serve on port {port}: {error.strerror}; choose another --port"
        ) from error
    return Exit.OK


def _fault_rule(text: str) -> Mapping[str, Any]:
    if text in FAULT_KINDS:
        return {"kind": text}
    try:
        rule = json.loads(text)
    except json.JSONDecodeError:
        rule = None
    if not isinstance(rule, dict):
        raise click.BadParameter(
            f"{text!r} is neither one of {', '.join(FAULT_KINDS)} nor a rule as "
            '{"kind": "line_error", "times": 1}.'
        )
    return rule
