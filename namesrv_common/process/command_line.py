"""What the command lines of all programs share: options, commands that have a log, and lines for people."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from namesrv_common.printable import print_error, printable_json
from namesrv_common.version import __version__

# Lines to the person who starts a program, before it has a log: text, or JSON objects where the program's log is JSON.


class _Lines:
    are_json: ClassVar[bool] = False


def write_json_lines() -> None:
    """Makes each later line of `report` an object."""
    _Lines.are_json = True


def report(program: str, text: str, event: str, level: str) -> None:
    """Writes one line to standard error: text, or an object with the keys of a log line."""
    if not _Lines.are_json:
        print_error(program, text)
        return
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"program": program, "text": text, "event": event, "level": level, "timestamp": now}
    sys.stderr.write(printable_json(json.dumps(line)) + "\n")


# Commands and options.

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""Click's UsageError, which newer versions of typer bring along under another name."""


class LoggingCommand(TyperCommand):
    """A command whose log may be JSON, and so are then the errors of its command line.

    Besides ``--log-format``, the program's variable ``..._LOG_FORMAT`` names the format.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words of the command."""
        words = " ".join(args).replace("=", " ")
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            program = str(ctx.find_root().info_name)
            variable = f"{program.upper().replace('-', '_')}_LOG_FORMAT"
            from_variable = "--log-format" not in words and os.environ.get(variable) == "json"
            if not (from_variable or "--log-format json" in words):
                raise
            write_json_lines()
            report(program, error.format_message(), "cannot_start", "error")
            raise typer.Exit(error.exit_code) from error


def version_option(program: str) -> Any:
    """The option ``--version``, for a flag of a program's callback: prints its name and version, and ends it."""

    def print_version(*, wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
