"""The command group: which commands there are, what precedes each, and how errors are shown."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from batchor_core.cli.examples import write_example
from batchor_core.cli.exits import Exit
from batchor_core.cli.log_lines import warnings_on_stderr
from batchor_core.errors import BatchorError, RunPausedError

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "start": ("batchor_core.cli.start:start", "Send the rows of a file to a model."),
    "status": ("batchor_core.cli.runs:status", "Show where a batch run stands."),
    "list": ("batchor_core.cli.runs:list_", "List the batch runs, newest first."),
    "wait": ("batchor_core.cli.runs:wait", "Drive a batch run until it is finished."),
    "results": ("batchor_core.cli.results:results", "Write the results of a finished batch run."),
    "pause": ("batchor_core.cli.control:pause", "Stop sending; what is in flight is collected."),
    "resume": ("batchor_core.cli.control:resume", "Let a paused batch run go on."),
    "cancel": ("batchor_core.cli.control:cancel", "End a batch run for good."),
    "retry": (
        "batchor_core.cli.retry:retry",
        "Ask failed items of a finished batch run again.",
    ),
    "export-artifacts": (
        "batchor_core.cli.artifacts:export_artifacts",
        "Copy the files of a finished batch run elsewhere.",
    ),
    "prune-artifacts": (
        "batchor_core.cli.artifacts:prune_artifacts",
        "Remove files of finished batch runs, for good.",
    ),
    "doctor": (
        "batchor_core.cli.doctor:doctor",
        "Check credentials, clock, state, files, vocabulary and prices.",
    ),
    "completion": (
        "batchor_core.cli.completion:completion",
        "Print the script that lets a shell complete commands.",
    ),
    "estimate": (
        "batchor_core.cli.estimate:estimate",
        "Tell what a job would cost, and send nothing.",
    ),
    "costs": (
        "batchor_core.cli.costs:costs",
        "Show what was paid, and what batch mode has saved.",
    ),
    "reconcile": (
        "batchor_core.cli.reconcile:reconcile",
        "Put the provider's batches back in their places after a restore.",
    ),
    "simulate": ("batchor_core.cli.simulate:simulate", "Serve a simulated provider."),
}
"""Command: (where it is, its first line of help). A command's module is imported when it is used:
the libraries behind them take most of a second, which ``--help`` need not."""

_EXAMPLE = """\
batchor start --input tickets.csv --id-field id --prompt-field text \\
  --model gpt-4.1-mini --run-id tickets --wait
batchor results --run-id tickets --output answers.parquet"""


class _Commands(click.Group):
    """Loads commands when they are used, and shows what a user did wrong in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_example(_EXAMPLE, formatter)

    def invoke(self, ctx: click.Context) -> None:
        try:
            status = super().invoke(ctx)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else ctx.command_path
            # A new error without context: click would print the usage above it.
            raise click.UsageError(
                f"{_one_line(error.format_message())} See '{path} --help'."
            ) from error
        except RunPausedError as error:
            click.echo(_one_line(str(error)), err=True)
            status = Exit.PAUSED
        except BatchorError as error:
            raise click.ClickException(_one_line(str(error))) from error
        ctx.exit(int(status or 0))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batchor-dagster", prog_name="batchor")
@click.pass_context
def main(ctx: click.Context) -> None:
    """LLM batch jobs that survive crashes, at half the price.

    Keys are read from the environment and from a .env file here or above; the environment wins.
    State is kept in $BATCHOR_HOME, or in your folder for application data.
    """
    ctx.with_resource(warnings_on_stderr())
    _read_dotenv()
    # Output models are imported by name, as from ``python -m``.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def _read_dotenv() -> None:
    from dotenv import find_dotenv, load_dotenv  # noqa: PLC0415 - not for --help

    path = find_dotenv(usecwd=True)
    if not path:
        return
    try:
        load_dotenv(path, override=False)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.ClickException(f"cannot read {path!r}: {reason}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())
