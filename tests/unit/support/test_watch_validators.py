"""The validators of a watch's promises let good histories pass and find each broken promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.routes import watch_validators as validators
from tests.support.routes.watch_validators import Client, Lookup, Route, WatchedStream

EPOCH = "e1"


def route(queues: int) -> route_data_pb2.TopicRouteData:
    return route_data_pb2.TopicRouteData(queue_datas=[route_data_pb2.QueueData(read_queue_nums=queues)])


def message(
    revision: int, changes: Mapping[str, int | None], *, bookmark: bool = True, epoch: str = EPOCH
) -> pb.WatchTopicRoutesResponse:
    return pb.WatchTopicRoutesResponse(
        header=route_data_pb2.NamesrvHeader(epoch=epoch, revision=revision),
        changes=[
            pb.TopicRouteChange(topic=topic, route=None if queues is None else route(queues))
            for topic, queues in changes.items()
        ],
        bookmark=bookmark,
    )


def stream(*messages: pb.WatchTopicRoutesResponse, after: int | None = None) -> WatchedStream:
    request = pb.WatchTopicRoutesRequest(topics=["T1", "T2"], topic_prefixes=["p-"])
    if after is not None:
        request.resume_after.epoch, request.resume_after.revision = EPOCH, after
    return WatchedStream(request, list(messages))


def lookup(revision: int, topic: str, queues: int | None) -> Lookup:
    found: Route = None if queues is None else route(queues)
    return Lookup(EPOCH, revision, topic, found)


GOOD = [
    stream(
        message(1, {"T1": 1, "T2": None}),
        message(3, {"p-1": 1}, bookmark=False),
        message(3, {"T2": 2}),
        message(4, {}),
        message(6, {"T1": 9}, bookmark=False),
    ),
    stream(message(4, {}), message(7, {"T1": None}), after=4),
    stream(message(8, {"T1": 3})),
]
LOOKUPS = [lookup(1, "T1", 1), lookup(2, "T1", 1), lookup(3, "T2", 2), lookup(7, "T1", None), lookup(8, "T1", 3)]


def test_a_good_history_keeps_all_promises() -> None:
    validators.check_promises([GOOD, [stream(message(3, {"T2": 2}))]], LOOKUPS)


def test_a_client_goes_on_after_its_last_bookmark_whatever_came_after_it() -> None:
    assert validators.last_bookmark(GOOD[:1]) == (EPOCH, 4)
    assert validators.last_bookmark([stream(message(1, {"T1": 1}, bookmark=False))]) is None


def test_what_came_after_the_last_bookmark_of_a_stream_does_not_count() -> None:
    held = list(validators.held_at_bookmarks(GOOD[:2]))
    assert [(each.revision, each.routes["T1"]) for each in held] == [
        (1, route(1)), (3, route(1)), (4, route(1)), (4, route(1)), (7, None),
    ]  # fmt: skip


BAD: dict[str, tuple[Callable[[Client], None], Client]] = {
    "filtered": (validators.check_filtered, [stream(message(1, {"other": 1}))]),
    "ordered, revisions": (validators.check_ordered, [stream(message(2, {}), message(1, {}))]),
    "ordered, epochs": (validators.check_ordered, [stream(message(1, {}), message(2, {}, epoch="e2"))]),
    "unique": (
        validators.check_unique,
        [stream(message(1, {"T1": 1}, bookmark=False), message(1, {"T1": 1}))],
    ),
    "bookmarkable": (validators.check_bookmarkable, [stream(message(1, {}), message(1, {"T1": 1}))]),
    "resumable, told again": (validators.check_resumable, [stream(message(4, {"T1": 1}), after=4)]),
    "resumable, from before": (validators.check_resumable, [stream(message(3, {}), after=4)]),
    "resumable, another epoch": (validators.check_resumable, [stream(message(5, {}, epoch="e2"), after=4)]),
}


@pytest.mark.parametrize("promise", BAD)
def test_a_broken_promise_of_one_client_is_found(promise: str) -> None:
    check, client = BAD[promise]
    with pytest.raises(AssertionError, match=promise.partition(",")[0]):
        check(client)


def test_two_clients_that_hold_different_routes_of_one_revision_are_found() -> None:
    with pytest.raises(AssertionError, match="atomic"):
        validators.check_atomic([[stream(message(1, {"T1": 1}))], [stream(message(1, {"T1": 2}))]])


@pytest.mark.parametrize(
    ("client", "truth"),
    [
        ([stream(message(1, {"T1": 1}))], lookup(1, "T1", 2)),
        ([stream(message(1, {"T1": 1}), message(5, {}))], lookup(3, "T1", 2)),
        ([stream(message(1, {"T1": 1})), stream(message(2, {}), after=1)], lookup(2, "T1", 2)),
    ],
    ids=["at a bookmark", "between two bookmarks", "lost while it resumed"],
)
def test_a_change_that_was_lost_is_found(client: Client, truth: Lookup) -> None:
    with pytest.raises(AssertionError, match="reliable"):
        validators.check_reliable(client, [truth])


def test_a_change_on_the_way_is_not_a_lost_one() -> None:
    client = [stream(message(1, {"T1": 1}), message(5, {"T1": 5}))]
    validators.check_reliable(client, [lookup(3, "T1", 3), lookup(6, "T1", 6), lookup(3, "T2", 1)])
