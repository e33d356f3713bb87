"""What the command lines of all programs share."""

from __future__ import annotations

from typing import Any

import typer

from namesrv_common.version import __version__


def version_option(program: str) -> Any:
    """The option ``--version``, for a flag of a program's callback: prints its name and version, and ends it."""

    def print_version(*, wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
