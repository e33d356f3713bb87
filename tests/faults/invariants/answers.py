"""The answers to lookups that a history has, with what the checks ask of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf import json_format
from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.history import Record, of_kind


@dataclass(frozen=True)
class Answer:
    """One answer, of one revision."""

    server: str
    began: float
    ended: float
    message: pb.BatchGetTopicRoutesResponse
    again: bool
    """Whether it is the same as the one before it of this name server."""

    @property
    def where(self) -> str:
        """For messages."""
        header = self.message.header
        return f"{self.server} at {self.began:.3f} s, revision {header.revision} of {header.epoch}"

    def versions(self) -> dict[str, dict[str, int]]:
        """By group: its topics, each with the number of queues, which is the version of the table."""
        versions: dict[str, dict[str, int]] = defaultdict(dict)
        for row in self.message.routes:
            for queues in row.route.queue_datas:
                versions[queues.broker_name][row.topic] = queues.read_queue_nums
        return versions

    def brokers(self) -> set[str]:
        """Names of all brokers in it, as the fleet has them."""
        return {name for name, _ in self.addrs()}

    def addrs(self) -> set[tuple[str, str]]:
        """Names and addresses of all brokers in it."""
        return {
            (f"{group.broker_name}-{broker.broker_id}", broker.broker_addr)
            for row in self.message.routes
            for group in row.route.broker_datas
            for broker in group.broker_addrs
        }

    def masters(self, topic: str) -> set[str]:
        """Groups that the topic's route has with a master."""
        return {
            group.broker_name
            for row in self.message.routes
            if row.topic == topic
            for group in row.route.broker_datas
            if any(broker.broker_id == 0 for broker in group.broker_addrs)
        }


def answers_of(records: list[Record]) -> Iterator[Answer]:
    """All answers, those that were recorded as 'again' with the content that they had."""
    last: dict[str, pb.BatchGetTopicRoutesResponse] = {}
    for record in of_kind(records, "lookup"):
        if "answer" in record:
            last[record["server"]] = json_format.ParseDict(record["answer"], pb.BatchGetTopicRoutesResponse())
        server, again = record["server"], "answer" not in record
        yield Answer(server, record["began"], record["at"], last[server], again)
