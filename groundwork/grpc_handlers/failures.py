"""The error that a call ends with after an exception: one rule for every listener of a program."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from groundwork.error_table import ErrorTable
from groundwork.errors import CallRefused, InternalDefect, SlowReader
from groundwork.rich_errors import RichError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Failures:
    """The words of a program for what goes wrong with its calls."""

    table: ErrorTable
    """All errors that the program answers calls with."""
    defect_event: str
    """The log event of a defect."""
    shutting_down: Callable[[], CallRefused]
    """Makes the error of a call that something else than its caller has cancelled."""
    slow_reader: Callable[[float], SlowReader]
    """Makes the error of a reader that has taken nothing for so many seconds."""

    def answer(self, error: BaseException, call: str) -> RichError:
        """What a call ends with because of an error. The text of an unexpected one goes only to the log."""
        if isinstance(error, CallRefused):
            # Its traceback would hold the parsed request, perhaps many megabytes, until the answer has left.
            return self.table.rich(error.with_traceback(None))
        defect = InternalDefect(uuid.uuid4().hex[:12])
        _log.error(self.defect_event, call=call, error_id=defect.metadata["error_id"], exc_info=error)
        return self.table.rich(defect)
