"""A program's table of errors: the gRPC code and the reason of each, and the form in which an error travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from groundwork.errors import CallRefused, InvalidField
from groundwork.rich_errors import FieldViolation, RichError


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """The errors that a program answers calls with."""

    domain: str
    """Domain of all reasons."""
    reasons: Any
    """The contract's enum ErrorReason."""
    codes: Mapping[type[CallRefused], tuple[grpc.StatusCode, int]]
    """The code and the reason of each error; the reason is a value of that enum."""
    retry_after_seconds: Mapping[type[CallRefused], float]
    """After which time a retry helps, for the errors where one does."""

    def rich(self, error: CallRefused) -> RichError:
        """An error as it travels."""
        code, reason = self.codes[type(error)]
        retry_after = error.retry_after_seconds
        return RichError(
            code,
            error.message,
            reason=self.reasons.Name(reason).removeprefix("ERROR_REASON_"),
            domain=self.domain,
            metadata=error.metadata,
            violations=(FieldViolation(error.field, error.problem),) if isinstance(error, InvalidField) else (),
            retry_after_seconds=self.retry_after_seconds.get(type(error)) if retry_after is None else retry_after,
        )
