"""The start of the program ``route-pipeline``.

The wheel brings no Spark; where it is missing, the program says what to install.
"""

from __future__ import annotations

import importlib
import sys

EXIT_BAD_INPUT = 2


def main() -> None:
    """Runs the program."""
    try:
        commands = importlib.import_module("route_pipeline.commands")
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if library == __package__:
            raise
        sys.stderr.write(f"route-pipeline: {library} is missing: pip install 'namesrv[route-pipeline]'\n")
        raise SystemExit(EXIT_BAD_INPUT) from error
    commands.app()
