"""Prints where topics live, each time that it changes: python watch.py HOST:PORT[,HOST:PORT...] TOPIC..."""

import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

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
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A name server that vanished without a word is noticed within 10 s: without ping_timeout_ms, after 60 s more."""
BOOKMARK_IS_OLD = ("EPOCH_CHANGED", "REVISION_COMPACTED")
HOLD_SECONDS = 120
"""How long a topic keeps its route when all its brokers vanish and the name server does not know that they ended."""
ENDED = {
    route_data_pb2.REMOVAL_REASON_UNREGISTERED,
    route_data_pb2.REMOVAL_REASON_BROKER_DOWN,
    route_data_pb2.REMOVAL_REASON_REPLACED,
    route_data_pb2.REMOVAL_REASON_NOT_IN_REGISTRATION,
    route_data_pb2.REMOVAL_REASON_DELETED_BY_OPERATOR,
    route_data_pb2.REMOVAL_REASON_LOSS_CONFIRMED,
}
MY_MISTAKE = ("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
"""Codes with which every name server would answer the same."""


@dataclass
class Watch:
    """The state that is kept between two streams."""

    topics: list[str]
    credentials: grpc.ChannelCredentials | None = None
    """None: plaintext."""
    metadata: tuple[tuple[str, str], ...] = ()
    bookmark: pb.ResumePoint | None = None
    """All that happened up to this point was told. It is of one name server, and means nothing to another."""
    failures: int = 0
    """Since the last message."""
    brokers: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """The brokers of each topic's route, by name and id."""
    holds: dict[str, threading.Timer] = field(default_factory=dict)
    """Of the topics whose lost route is kept for now."""

    def follow(self, namesrv: str) -> None:
        """Says what a name server tells, until the stream breaks."""
        after = f"after {self.bookmark.revision}" if self.bookmark else "from the beginning"
        print("watching", namesrv, after, flush=True)
        request = pb.WatchTopicRoutesRequest(topics=self.topics, resume_after=self.bookmark)
        with connect(namesrv, self.credentials) as channel:
            # Later messages would add topics to the open watch.
            stream = route_service_pb2_grpc.RouteServiceStub(channel).WatchTopicRoutes(
                iter([request]), metadata=self.metadata
            )
            first_message = threading.Timer(FIRST_MESSAGE_SECONDS, stream.cancel)
            first_message.start()
            try:
                for message in stream:
                    first_message.cancel()
                    self.failures = 0
                    for change in message.changes:
                        self.take(change)
                    if message.bookmark:
                        self.bookmark = pb.ResumePoint(epoch=message.header.epoch, revision=message.header.revision)
            finally:
                first_message.cancel()

    def take(self, change: pb.TopicRouteChange) -> None:
        """Prints who left the route of a topic since the last message, and its whole route, if it has one."""
        topic = change.topic
        if topic in self.holds:
            self.holds.pop(topic).cancel()
        known = self.brokers.setdefault(topic, set())
        for gone in change.removals:
            reason = route_data_pb2.RemovalReason.Name(gone.reason).removeprefix("REMOVAL_REASON_")
            print(f"{topic}: {gone.broker_name} {gone.broker_addr} left, {reason}", flush=True)
            if gone.reason in ENDED:
                known -= {broker for broker in known if is_of(gone, *broker)}
        if not change.HasField("route") and known:
            print(f"{topic}: its brokers may live, so its route is kept for {HOLD_SECONDS} s", flush=True)
            self.holds[topic] = threading.Timer(HOLD_SECONDS, self.lose, [topic])
            self.holds[topic].daemon = True
            self.holds[topic].start()
        elif not change.HasField("route"):  # not there yet, deleted, or its last broker left: the watch continues
            self.lose(topic)
        else:
            known.clear()
            for group in change.route.broker_datas:
                known |= {(group.broker_name, one.broker_id) for one in group.broker_addrs}
                addresses = [f"{one.broker_id}={one.broker_addr}" for one in group.broker_addrs]
                print(f"{topic}: {group.broker_name}", *addresses, flush=True)

    def lose(self, topic: str) -> None:
        """Believes that a topic has no route."""
        self.brokers.pop(topic, None)
        print(f"{topic}: no route", flush=True)


def read_credentials() -> grpc.ChannelCredentials | None:
    """Reads the credentials from the environment, and returns None without NAMESRV_CA.

    Without credentials, connections are plaintext.
    """
    names = ("NAMESRV_CA", "NAMESRV_KEY", "NAMESRV_CERT")
    ca, key, certificate = (Path(os.environ[name]).read_bytes() if name in os.environ else None for name in names)
    if ca is None:
        return None
    return grpc.ssl_channel_credentials(ca, key, certificate)


def read_metadata() -> tuple[tuple[str, str], ...]:
    """Reads the token from the environment: the metadata of each call. Plaintext connections send none.

    Do not use gRPC's call credentials for it: closing a connection can hang (grpc/grpc#42247).
    """
    if "NAMESRV_CA" not in os.environ or "NAMESRV_TOKEN" not in os.environ:
        return ()
    return (("authorization", f"Bearer {os.environ['NAMESRV_TOKEN']}"),)


def connect(namesrv: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Opens a connection with TLS, or without credentials in plaintext."""
    if credentials is None:
        return grpc.insecure_channel(namesrv, KEEPALIVE)
    return grpc.secure_channel(namesrv, credentials, KEEPALIVE)


def is_of(gone: pb.BrokerRemoval, broker_name: str, broker_id: int) -> bool:
    """Whether a broker is among those that left: one, a whole group, or without a name all of the topic."""
    same_id = not gone.HasField("broker_id") or gone.broker_id == broker_id
    return not gone.broker_name or (gone.broker_name == broker_name and same_id)


def reason_and_pause(error: grpc.RpcError) -> tuple[str, float]:
    """The reason of the name server's table, and the seconds after which it wants to be asked again."""
    reason, seconds = "", 0.0
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = status_pb2.Status()
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-status-details-bin":
            status.ParseFromString(entry.value)
    for detail in status.details:
        if detail.Unpack(info) and info.domain == "namesrv.dev":
            reason = info.reason
        elif detail.Unpack(retry):
            seconds = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, seconds


def main(namesrvs: list[str], topics: list[str]) -> int:
    """Watches until a name server says that this cannot work; returns the exit code."""
    watch, at = Watch(topics, read_credentials(), read_metadata()), 0
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
        following = at if stays else (at + 1) % len(namesrvs)
        if reason == "WATCH_EXPIRED":  # so that watches spread over all name servers again
            following = random.randrange(len(namesrvs))
        if following != at:
            at, watch.bookmark, wanted_seconds = following, None, 0.0
        time.sleep(max(random.uniform(0, most), wanted_seconds))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python watch.py HOST:PORT[,HOST:PORT...] TOPIC...")
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
