"""Options that the command lines of all programs share, and commands that have a log."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from namesrv_common.process.json_lines import is_json_wanted, report, write_json_lines
from namesrv_common.version import __version__

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""Click's UsageError, which newer versions of typer bring along under another name."""


class LoggingCommand(TyperCommand):
    """A command whose log may be JSON, and so are then the errors of its command line."""

    variable: ClassVar[str]
    """The environment variable with the format of the log."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words of the command."""
        words = args[:]
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            if not is_json_wanted(words, os.environ.get(self.variable)):
                raise
            write_json_lines()
            report(str(ctx.find_root().info_name), error.format_message(), "cannot_start", "error")
            raise typer.Exit(error.exit_code) from error


def version_option(program: str) -> Any:
    """The option ``--version``, for a flag of a program's callback: prints its name and version, and ends it."""

    def print_version(*, wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
