"""Prints where topics live, each time that it changes: python watch.py HOST:PORT[,HOST:PORT...] TOPIC..."""

import random
import sys
import threading
import time
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2
from namesrv_api.v1 import route_data_pb2, route_service_pb2_grpc
from namesrv_api.v1 import route_service_pb2 as pb

FIRST_MESSAGE_SECONDS = 5
"""A watch has no deadline; its first message has one, and it always comes."""
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A name server that vanished without a word is noticed within 10 s."""
BOOKMARK_IS_OLD = ("EPOCH_CHANGED", "REVISION_COMPACTED")
MY_MISTAKE = ("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
"""Codes with which every name server would answer the same."""


@dataclass
class Watch:
    """What is kept between two streams."""

    topics: list[str]
    bookmark: pb.ResumePoint | None = None
    """All that happened up to this point was told. It is of one name server, and means nothing to another."""
    failures: int = 0
    """Since the last message."""

    def follow(self, namesrv: str) -> None:
        """Says what a name server tells, until the stream breaks."""
        after = f"after {self.bookmark.revision}" if self.bookmark else "from the beginning"
        print("watching", namesrv, after, flush=True)
        request = pb.WatchTopicRoutesRequest(topics=self.topics, resume_after=self.bookmark)
        with grpc.insecure_channel(namesrv, KEEPALIVE) as channel:
            stream = route_service_pb2_grpc.RouteServiceStub(channel).WatchTopicRoutes(request)
            first_message = threading.Timer(FIRST_MESSAGE_SECONDS, stream.cancel)
            first_message.start()
            try:
                for message in stream:
                    first_message.cancel()
                    self.failures = 0
                    for change in message.changes:
                        say(change)
                    if message.bookmark:
                        self.bookmark = pb.ResumePoint(epoch=message.header.epoch, revision=message.header.revision)
            finally:
                first_message.cancel()


def say(change: pb.TopicRouteChange) -> None:
    """Prints the whole route after a change, or that there is none, and who left it since the last message."""
    for gone in change.removals:
        reason = route_data_pb2.RemovalReason.Name(gone.reason).removeprefix("REMOVAL_REASON_")
        print(f"{change.topic}: {gone.broker_name} {gone.broker_addr} left, {reason}", flush=True)
    if not change.HasField("route"):  # not there yet, deleted, or its last broker left: the watch goes on
        print(f"{change.topic}: no route", flush=True)
    for group in change.route.broker_datas:
        addresses = [f"{one.broker_id}={one.broker_addr}" for one in group.broker_addrs]
        print(f"{change.topic}: {group.broker_name}", *addresses, flush=True)


def reason_and_pause(error: grpc.RpcError) -> tuple[str, float]:
    """The reason of the name server's table, and the seconds after which it wants to be asked again."""
    reason, seconds = "", 0.0
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = status_pb2.Status()
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-status-details-bin":
            status.ParseFromString(entry.value)
    for detail in status.details:
        if detail.Unpack(info) and info.domain == "namesrv":
            reason = info.reason
        elif detail.Unpack(retry):
            seconds = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, seconds


def main(namesrvs: list[str], topics: list[str]) -> int:
    """Watches until a name server says that this cannot work; returns the exit code."""
    watch, at = Watch(topics), 0
    while True:
        code, reason, wanted_seconds = "OK", "", 0.0
        try:
            watch.follow(namesrvs[at])
        except grpc.RpcError as error:
            code, (reason, wanted_seconds) = error.code().name, reason_and_pause(error)
            print(f"{namesrvs[at]}: {code} {reason}: {error.details()}", file=sys.stderr)
        if code in MY_MISTAKE or reason == "LIMIT_EXCEEDED":
            return 1
        if reason in BOOKMARK_IS_OLD:
            watch.bookmark = None
            continue
        watch.failures += 1
        most = min(LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS * 2 ** min(watch.failures, 10))
        # A connection breaks more often than a name server: the same one is asked once more, after the bookmark.
        stays = watch.bookmark and watch.failures == 1 and reason != "SHUTTING_DOWN"
        if len(namesrvs) > 1 and not stays:
            at, watch.bookmark, wanted_seconds = (at + 1) % len(namesrvs), None, 0.0
        time.sleep(max(random.uniform(0, most), wanted_seconds))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python watch.py HOST:PORT[,HOST:PORT...] TOPIC...")
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
