"""Errors of calls to a name server: it refused the request, or another name server may answer."""

from __future__ import annotations

import grpc

from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError

ELSEWHERE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Codes that say something about the name server and not about the request."""


class CallError(Exception):
    """A name server answered with an error, or did not answer."""

    def __init__(self, endpoint: Endpoint, error: RichError) -> None:
        reason = error.reason or error.code.name
        super().__init__(f"{endpoint}: {reason}: {error.message}")
        self.endpoint = endpoint
        self.error = error

    @property
    def reason(self) -> str:
        """The name server's reason, or the code where it gave none."""
        return self.error.reason or self.error.code.name

    @property
    def unreachable(self) -> bool:
        """Whether it is worth asking another name server."""
        return self.error.code in ELSEWHERE
