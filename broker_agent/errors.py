"""The agent's own exceptions: one tree."""

from __future__ import annotations

from typing import cast

import grpc

from groundwork.grpc_errors import FailedCall, RichError


class AgentError(Exception):
    """Base of the agent's own exceptions."""


class StartError(AgentError):
    """The agent cannot start as asked. The message is one line for the operator."""


class NameServerError(AgentError):
    """A call to a name server failed, or could not be made in time."""

    def __init__(self, rich: RichError) -> None:
        super().__init__(str(rich))
        self.rich = rich

    @classmethod
    def of_call(cls, error: grpc.RpcError) -> NameServerError:
        """The error of a call that failed in gRPC."""
        return cls(RichError.of(cast("FailedCall", error)))  # its stubs type the metadata as another sequence

    @classmethod
    def deadline_exceeded(cls, message: str) -> NameServerError:
        """The error of a call for which its caller had no time left."""
        return cls(RichError(grpc.StatusCode.DEADLINE_EXCEEDED, message))
