"""The handlers of the name server's calls: the shared ones, with the name server's admission, bounds and errors."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import MethodDescriptor

from namesrv.app.access import Admission, Authorizer, Entered
from namesrv.app.quotas import FairShares
from namesrv.engines.api import max_request_bytes
from namesrv.error_codes import FAILURES
from namesrv.limits import MAX_MESSAGE_BYTES, SMALL_REQUEST_BYTES
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.rpc_handlers import CallHandlers, Context, LargeRequests, Memory
from namesrv_common.server.shares import Shares

__all__ = ["Context", "handlers_of_server"]

LARGE_STREAMS = ("namesrv_api.v1.RouteService.WatchTopicRoutes",)
"""Streams whose requests may be as large as any: a watch names up to ten thousand topics."""


class RequestMemory(Memory):
    """Counts the bytes of large requests, of all calls together, from their parsing until they are answered.

    A flood of maximal requests is refused and not held.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def take(self, entered: Entered, size: int) -> int:
        """Takes memory for a request of so many bytes; returns how much to give back. A small request takes none.

        Raises:
            OVERLOADED: Too little memory is left, in all or for the caller.
        """
        if size <= SMALL_REQUEST_BYTES:
            return 0
        self._shares.take(entered.sharer, size)
        return size

    def give_back(self, entered: Entered | None, taken: int) -> None:
        """Gives back the memory that ``take`` returned. Before admission a call has taken none."""
        if taken and entered is not None:
            self._shares.give_back(entered.sharer, taken)


def handlers_of_server(
    slow_reader_seconds: float,
    *,
    observers: Sequence[CallObserver] = (),
    shares: FairShares | None = None,
    authorizer: Authorizer | None = None,
    large_requests: LargeRequests | None = None,
) -> CallHandlers:
    """Makes the handlers of a name server's services.

    Args:
        slow_reader_seconds: How long the reader of a stream may take nothing before it is cut.
        authorizer: Decides which calls a caller may make. None: all calls.
        large_requests: Parses large requests in pieces. None refuses those above 4 MiB, as each is
            then parsed in one step.
    """
    of_all = shares or FairShares()
    return CallHandlers(
        FAILURES,
        slow_reader_seconds,
        gate_of=lambda method: Admission(method, of_all, authorizer),
        memory=RequestMemory(of_all.request_bytes),
        large_requests=large_requests,
        observers=observers,
        max_request_bytes=_max_request_bytes if large_requests else lambda _: MAX_MESSAGE_BYTES,
        large_streams=LARGE_STREAMS,
    )


def _max_request_bytes(method: MethodDescriptor) -> int:
    return max_request_bytes(f"/{method.containing_service.full_name}/{method.name}")
