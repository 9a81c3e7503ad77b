"""Options that several commands share, as decorators."""

import functools
import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from batchor_core.errors import ConfigurationError
from batchor_core.providers import registry
from batchor_core.providers.registry import ProviderFactory
from batchor_core.runner import BatchRunner

Command: TypeAlias = Callable[..., Any]
Option: TypeAlias = Callable[[Command], Command]


def gathered(into: Callable[..., object], name: str, *options: Option) -> Option:
    """Offer options whose values reach the command as one argument.

    Args:
        into: Makes the argument; each option is named like one of its parameters.
        name: Name of the argument.
        options: Made by ``click.option``, in the order of the help.
    """
    parameters = inspect.signature(into).parameters

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**values: object) -> object:
            mine = {key: values.pop(key) for key in parameters.keys() & values.keys()}
            return command(**values, **{name: into(**mine)})

        decorated: Command = call
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


@dataclass(frozen=True, kw_only=True)
class StatePlace:
    """Where the state of batch runs is kept; all None: in ``$BATCHOR_HOME``.

    Attributes:
        db_path: A SQLite file.
        dsn: A PostgreSQL database; holds a password, so it is never shown.
        artifacts: The data plane: a folder or URL.
    """

    db_path: Path | None = None
    dsn: str | None = None
    artifacts: str | None = None

    def __post_init__(self) -> None:
        if self.db_path and self.dsn:
            raise click.UsageError("Give --db-path or --dsn, not both.")
        if self.dsn and not self.artifacts:
            raise click.UsageError("Give --artifacts with --dsn: where the rows' files shall lie.")

    def open(
        self, *, create: bool = False, connect: ProviderFactory = registry.connect
    ) -> BatchRunner:
        """Open the state.

        Args:
            create: Whether a new SQLite file may be made at ``db_path``.
            connect: Makes the provider's adapter.

        Raises:
            ConfigurationError: There is no such file.
        """
        if self.db_path and not create and not self.db_path.expanduser().exists():
            raise ConfigurationError(
                f"no batch runs: {str(self.db_path)!r} does not exist; give the --db-path that "
                "they were started with"
            )
        return BatchRunner(self.dsn or self.db_path, self.artifacts, connect=connect)

    @property
    def flags(self) -> str:
        """The options that name the same place, to be shown in a command to go on with."""
        named = {
            "--db-path": self.db_path,
            "--dsn": self.dsn and "...",
            "--artifacts": self.artifacts,
        }
        given = {option: str(value) for option, value in named.items() if value}
        return "".join(f" {option} {shlex.quote(value)}" for option, value in given.items())


place_options = gathered(
    StatePlace,
    "place",
    click.option(
        "--db-path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="SQLite file that keeps the state.  [default: $BATCHOR_HOME/state.sqlite3]",
    ),
    click.option("--dsn", metavar="URL", help="PostgreSQL database that keeps the state instead."),
    click.option(
        "--artifacts",
        metavar="URL",
        help="Folder or fsspec URL of the rows' files.  [default: 'artifacts' beside the state]",
    ),
)

run_id_option = click.option("--run-id", required=True, metavar="ID", help="The batch run.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Stop waiting after S seconds (exit status 6); the run goes on.",
)
