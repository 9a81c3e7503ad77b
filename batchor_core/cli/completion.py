"""Completion of commands and options by the shell."""

import click
from click.shell_completion import get_completion_class

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit

_VARIABLE = "_BATCHOR_COMPLETE"
"""Set by the script when it asks for completions; the name is click's rule for ``batchor``."""


@click.command(cls=ExampleCommand, example="batchor completion bash > batchor-completion.sh")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> Exit:
    """Print the script that lets a shell complete commands.

    Bash: source it in ~/.bashrc. Zsh: source it in ~/.zshrc, behind compinit. Fish: save it as
    ~/.config/fish/completions/batchor.fish.
    """
    root = ctx.find_root()
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(root.command, {}, "batchor", _VARIABLE).source())
    return Exit.OK
