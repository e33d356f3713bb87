"""Each validator of watches accepts the sound history, and notices the one that breaks its promise."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.routes.watch_validators import Client, Lookup, WatchedStream, check_promises


def route(perm: int) -> route_data_pb2.TopicRouteData:
    return route_data_pb2.TopicRouteData(queue_datas=[route_data_pb2.QueueData(perm=perm)])


def message(revision: int, *, epoch: str = "1", bookmark: bool = True, **perms: int) -> pb.WatchTopicRoutesResponse:
    """A message that reports topics with the permission of each."""
    told = pb.WatchTopicRoutesResponse(header=route_data_pb2.NamesrvHeader(epoch=epoch, revision=revision))
    told.bookmark = bookmark
    for topic, perm in perms.items():
        told.changes.add(topic=topic, route=route(perm))
    return told


def watch(*messages: pb.WatchTopicRoutesResponse, after: int | None = None) -> WatchedStream:
    """A stream of T1 and T2, which continues after a revision or starts anew."""
    request = pb.WatchTopicRoutesRequest(topics=["T1", "T2"])
    if after is not None:
        request.resume_after.epoch, request.resume_after.revision = "1", after
    return WatchedStream(request, list(messages))


def absent(*, bookmark: bool) -> pb.WatchTopicRoutesResponse:
    """A message that tells that T1 has no route."""
    told = message(1, bookmark=bookmark)
    told.changes.add(topic="T1")
    return told


FIRST = message(1, T1=6, T2=6)
SOUND = watch(FIRST, message(3, T1=4))
LOOKUPS = [Lookup("1", 1, "T1", route(6)), Lookup("1", 2, "T2", route(6)), Lookup("1", 3, "T1", route(4))]


def test_the_validators_accept_a_sound_history_with_a_break() -> None:
    check_promises([[SOUND], [watch(FIRST), watch(message(3, T1=4), after=1)]], LOOKUPS)


def test_a_topic_may_be_absent_again_when_the_name_server_becomes_warm() -> None:
    check_promises([[watch(absent(bookmark=True), absent(bookmark=False))]], [])


@pytest.mark.parametrize(
    ("promise", "clients"),
    [
        ("filtered", [[watch(message(1, T3=6))]]),
        ("ordered", [[watch(FIRST, message(0))]]),
        ("ordered", [[watch(FIRST, message(2, epoch="2"))]]),
        ("unique", [[watch(message(1, bookmark=False, T1=6), FIRST)]]),
        ("unique", [[watch(absent(bookmark=False), absent(bookmark=False), absent(bookmark=True))]]),
        ("atomic", [[SOUND], [watch(message(3, T2=4))]]),
        ("bookmarkable", [[watch(message(1, T1=6), message(1, T2=6))]]),
        ("resumable", [[watch(FIRST), watch(message(1, T1=6), after=1)]]),
        ("reliable", [[watch(message(1, T1=4))]]),
        ("reliable", [[watch(message(0, T1=6, T2=4), message(4))]]),
    ],
)
def test_the_validator_notices_what_breaks_its_promise(promise: str, clients: list[Client]) -> None:
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        check_promises(clients, LOOKUPS)
