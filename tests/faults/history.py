"""The history of a run, which is all that its checks get, and what it says of processes, ways and lookups.

A history is lines of JSON with the second of the run, and what happened. All times are seconds of the run.
"""

from __future__ import annotations

import json
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2 as pb

Record = dict[str, Any]
"""``at`` is a second of the run, ``what`` the kind of record. The callers that add it know its other fields."""


class History:
    """Collects records from any thread, in memory and in a file, in the order of their times."""

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 4)

    def add(self, what: str, **fields: Any) -> None:
        """Adds a record, as of now."""
        with self._lock:
            record = {"at": self.now(), "what": what, **fields}
            if not self._file.closed:  # a thread that ends late has nothing to add to a run that is over
                self.records.append(record)
                self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Takes no more."""
        with self._lock:
            self._file.close()


def of_kind(records: list[Record], what: str) -> Iterator[Record]:
    """The records of one kind."""
    return (record for record in records if record["what"] == what)


def as_json(message: Message) -> dict[str, Any]:
    """A message as a history keeps it."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


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


KeyT = TypeVar("KeyT")

Span = tuple[float, float]
"""From and to; to is infinite if it has not ended."""


def _overlaps(span: Span, begin: float, end: float) -> bool:
    return span[0] <= end and begin <= span[1]


@dataclass(frozen=True)
class Table:
    """A topic table that a group was given."""

    at: float
    version: int
    topics: frozenset[str]


class Timeline:
    """What happened to processes, ways and topic tables, and what lookups answered in the meantime."""

    def __init__(self, records: list[Record]) -> None:
        self.answers = tuple(answers_of(records))
        """Read once: they are most of a history."""
        self.tables: dict[str, list[Table]] = defaultdict(list)
        """By group, in the order of writing."""
        for record in of_kind(records, "topics"):
            table = Table(record["at"], record["version"], frozenset(record["topics"]))
            self.tables[record["group"]].append(table)
        processes = [(record["name"], record["at"], record["event"]) for record in of_kind(records, "process")]
        up = {"started", "continued"}
        self._down = _spans(((name, at, event in up) for name, at, event in processes), down_at_first=True)
        # A process may be heard before it has said that it is there.
        heard = {"starting", *up}
        self._silent = _spans(((name, at, event in heard) for name, at, event in processes), down_at_first=True)
        self._ended: dict[str, list[float]] = defaultdict(list)
        self._asked_to_end: dict[str, list[float]] = defaultdict(list)
        for name, at, event in processes:
            if event in {"killed", "ended"}:
                self._ended[name].append(at)
            if event == "ended":
                self._asked_to_end[name].append(at)
        links = [((one["client"], one["server"]), one["at"], one["event"]) for one in of_kind(records, "link")]
        self._disturbed = _spans(((link, at, event == "healed") for link, at, event in links), down_at_first=False)
        cuts = ((link, at, event == "healed") for link, at, event in links if event in {"cut", "healed"})
        self._cut = _spans(cuts, down_at_first=False)
        self._logs: dict[str, list[float]] = defaultdict(list)
        for record in of_kind(records, "log"):
            self._logs[record["server"]].append(record["seen_at"])

    def tables_given(self, group: str, version: int, end: float) -> list[Table]:
        """The tables that a group was given until a time, from a version on."""
        tables = self.tables[group]
        first = bisect_left(tables, version, key=attrgetter("version"))
        return tables[first : bisect_right(tables, end, key=attrgetter("at"))]

    def ran(self, process: str, begin: float, end: float) -> bool:
        """Whether a process ran all the time."""
        return not any(_overlaps(span, begin, end) for span in self._down[process])

    def was_sound(self, client: str, server: str, begin: float, end: float) -> bool:
        """Whether a client ran and its way to the server was sound, all the time. Says nothing of the server."""
        disturbed = self._disturbed[client, server]
        return self.ran(client, begin, end) and not any(_overlaps(span, begin, end) for span in disturbed)

    def lost_since(self, client: str, server: str, at: float) -> float | None:
        """Since when the server could not hear the client, without a break; None if it could, or might."""
        spans = [span for span in (*self._silent[client], *self._cut[client, server]) if span[0] <= at <= span[1]]
        return min((begin for begin, _ in spans), default=None)

    def first_ran_at(self, process: str) -> float:
        """From when on a process has run for the first time."""
        started = next((end for begin, end in self._down[process] if begin == -math.inf), -math.inf)
        return math.nextafter(started, math.inf)

    def was_asked_to_end(self, process: str, begin: float, end: float) -> bool:
        """Whether a process was ended in an orderly way in a time."""
        return any(begin <= at <= end for at in self._asked_to_end[process])

    def end_was_told(self, client: str, server: str, at: float) -> bool:
        """Whether the server could hear how the client's process ended, and it has not come back by a time.

        The connection must have been sound since the end before that one: a client that is cut off may leave a
        connection behind, and nobody reports it.
        """
        before, ended = ([-math.inf, -math.inf] + [end for end in self._ended[client] if end <= at])[-2:]
        is_over = any(begin <= ended and at <= end for begin, end in self._silent[client])
        return is_over and not any(_overlaps(span, before, at) for span in self._disturbed[client, server])

    def doubts(self, server: str, begin: float, end: float) -> bool:
        """Whether the name server had, in a time, a reason to keep brokers that it could not hear."""
        went_down = [span for span in self._down[server] if span[0] >= 0]  # before its first start there was nothing
        was_down = any(_overlaps(span, begin, end) for span in went_down)
        return was_down or any(begin <= at <= end for at in self._logs[server])

    def ran_again_at(self, process: str, at: float) -> float:
        """When a process that is heard at a time last came back; minus infinity if it never was away."""
        # It may be heard before it has said that it is there.
        return max((min(span[1], at) for span in self._down[process] if span[0] <= at), default=-math.inf)

    def comes_back_after(self, process: str, at: float) -> float:
        """When a process that was down at a time ran again; the time itself if it ran."""
        return max((span[1] for span in self._down[process] if span[0] <= at <= span[1]), default=at)


def _spans(events: Iterable[tuple[KeyT, float, bool]], *, down_at_first: bool) -> dict[KeyT, list[Span]]:
    """Spans in which something is down, from when it went down and came back."""
    spans: dict[KeyT, list[Span]] = defaultdict(list)
    down_since: dict[KeyT, float] = {}
    for key, at, is_up in events:
        if key not in spans and down_at_first:
            down_since[key] = -math.inf
        spans.setdefault(key, [])
        if not is_up:
            down_since.setdefault(key, at)
        elif key in down_since:
            spans[key].append((down_since.pop(key), at))
    for key, since in down_since.items():
        spans[key].append((since, math.inf))
    return spans
