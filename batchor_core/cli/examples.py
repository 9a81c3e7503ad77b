"""Commands whose help ends with an example, as it is to be typed."""

from typing import Any

import click


class ExampleCommand(click.Command):
    """A command with an example in its help.

    Args:
        example: Lines that are shown as they are: click would wrap an epilog.
    """

    def __init__(self, *args: Any, example: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the example."""
        write_example(self.example, formatter)


def write_example(example: str, formatter: click.HelpFormatter) -> None:
    """Write an example below everything else, without wrapping its lines."""
    with formatter.section("Example"):
        for line in example.splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
