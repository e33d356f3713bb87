"""The command ``history``: what it asks of each name server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from nsctl.commands.history import history
from nsctl.session import Session

NOW_MILLIS = 1_000_000_000
"""By the name server's clock, which is far behind ours."""


class FakeSession:
    """A session of one name server, which it is for itself; its journal is empty."""

    endpoint = "ns-a:9876"
    timeout_seconds = 1.0

    def __init__(self) -> None:
        self.asked: list[admin_service_pb2.ListAuditEntriesRequest] = []

    def rows_of_each(self, ask: Callable[[Any], list[Any]]) -> list[Any]:
        return ask(self)

    def show(self, *_: object) -> None:
        pass

    def stream(self, name: str, *_: object) -> Iterator[pb.StreamRouteSnapshotResponse]:
        assert name == "StreamRouteSnapshot"
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=NOW_MILLIS))

    def pages(self, name: str, request: admin_service_pb2.ListAuditEntriesRequest) -> Iterator[object]:
        assert name == "ListAuditEntries"
        self.asked.append(request)
        yield from ()


def test_how_far_back_goes_by_the_clock_of_the_name_server() -> None:
    session = FakeSession()
    history(cast("Session", session), since=3_600)
    assert [request.from_millis for request in session.asked] == [NOW_MILLIS - 3_600_000]


def test_without_a_time_all_is_asked_for() -> None:
    session = FakeSession()
    history(cast("Session", session))
    assert not session.asked[0].HasField("from_millis")
