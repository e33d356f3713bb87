"""The start of a console script: where what it needs is not installed, one line says what to install."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping

from groundwork.program.json_lines import is_json_wanted, take_stderr, tell
from groundwork.wording import how_to_install

EXIT_NOT_INSTALLED = 2
"""As for a wrong setting: systemd does not try again."""


def run_program(program: str, module: str, extra: str, logging: Mapping[str, str] | None = None) -> None:
    """Imports a program and runs it.

    The wheel brings what a client library needs; what a program needs beside that is an extra of its own. This module
    therefore imports nothing that has to be installed.

    Args:
        program: The console script, for the line.
        module: The module with its ``main``.
        extra: The extra that brings all that it needs.
        logging: Its commands that have a log, each with what the names of its variables begin with. If that is to be
            JSON, so is every line on standard error from now on.

    Raises:
        SystemExit: A library is missing; the line names it and the extra.
    """
    if is_json_wanted(logging or {}, sys.argv[1:], os.environ):
        take_stderr()
    try:
        importlib.import_module(module).main()
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if not library or importlib.util.find_spec(library) is not None:
            raise  # a part of something that is there: a defect, and no matter of installing
        tell(program, f"{library} is missing; {how_to_install(extra)}", "cannot_start", "error")
        raise SystemExit(EXIT_NOT_INSTALLED) from error
