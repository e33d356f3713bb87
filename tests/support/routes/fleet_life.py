"""A recorded life of a fleet: name servers made of the real core on a virtual clock, and the log that was made of it.

The same seed makes the same life. What happened is noted by comparing whole snapshots, revision after revision, and not
from the changes that the pipeline reads.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.change_stream import change_messages
from namesrv.core.model import DataVersion
from namesrv.core.removals import scan_not_active_broker
from namesrv.core.snapshot import RouteSnapshot
from namesrv.core.state import NamesrvIdentity, RouteState
from namesrv_common.grpc_errors import RichError
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions
from tests.support.core_fleet import Fleet
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.routes.route_rows import RouteRows, key_of
from tests.support.state_changes import apply_now
from tests.support.virtual_clock import VirtualClock

Row = tuple[Any, ...]
State = dict[tuple[str, str], Row]
"""What a name server holds: contents by table and key, as the history names them."""

OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}
"""Of the ingests."""
_TABLES = {"queues": "topic_queues", "live": "brokers", "groups": "broker_groups", "clusters": "clusters"}
"""What the history calls the tables of a reader."""
MAX_CHANGES = 40
"""Changes that a name server keeps: few, so that some are compacted before they are read."""

_LOST = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer", reason="TEST", domain="namesrv.dev")


class Moment(NamedTuple):
    """A revision of a name server."""

    epoch: str
    revision: int
    at_millis: int
    state: State
    reasons: dict[tuple[str, str], str]
    """Why rows were removed at it."""


class Version(NamedTuple):
    """A row of the history."""

    namesrv: str
    table: str
    key: str
    content: Row
    from_point: tuple[str, int]
    from_millis: int
    to_point: tuple[str, int] | None
    to_millis: int | None
    end_reason: str | None


def content_of(table: str, row: Any) -> Row:
    """The compared columns of a row of the history."""
    if table == "topic_queues":
        names = ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag")
        return tuple(row[name] for name in names)
    if table == "broker_groups":
        return tuple((broker["broker_id"], broker["broker_addr"]) for broker in row["broker_addrs"])
    if table == "brokers":
        names = ("broker_name", "broker_id", "data_version_timestamp_millis", "data_version_counter")
        return tuple(row[name] for name in names)
    return ()


def state_of(snapshot: RouteSnapshot) -> State:
    """What a snapshot holds."""
    rows = RouteRows.of_snapshot(_parsed(snapshot))
    state: State = {}
    for key, queue in rows.queues.items():
        numbers = (queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag)
        state["topic_queues", "/".join(key)] = numbers
    for key, group in rows.groups.items():
        state["broker_groups", "/".join(key)] = tuple((one.broker_id, one.broker_addr) for one in group.broker_addrs)
    for key, live in rows.live.items():
        version = live.data_version
        content = (live.broker_name, live.broker_id, version.timestamp_millis, version.counter)
        state["brokers", "/".join(key)] = content
    return state | {("clusters", cluster): () for cluster in rows.clusters}


def _parsed(snapshot: RouteSnapshot) -> Iterator[pb.StreamRouteSnapshotResponse]:
    return (pb.StreamRouteSnapshotResponse.FromString(message) for message in snapshot.messages() if message)


class LivingNamesrv(ScriptedNamesrv):
    """The core behind real gRPC. Nothing changes while somebody reads: the life stands still for an ingest."""

    def __init__(self, name: str, clock: VirtualClock) -> None:
        super().__init__(name)
        self.clock = clock
        self.moments: list[Moment] = []
        """Every revision there ever was."""
        self.starts = 0
        self.pins: dict[str, RouteSnapshot] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Starts, or starts again with empty tables and a later epoch."""
        self.starts += 1
        numbers = itertools.count(1)
        identity = NamesrvIdentity(self.name, f"{self.starts:015}-00000000")
        self.fleet = Fleet()
        self.fleet.serve(RouteState(identity, self.clock, lambda: f"channel-{next(numbers)}"))
        self.fleet.state.change_log._max_changes = MAX_CHANGES
        self.note()

    def note(self) -> None:
        """Notes the revision, if it is a new one."""
        state = self.fleet.state
        epoch, revision = state.identity.epoch, state.revision
        if self.moments and self.moments[-1][:2] == (epoch, revision):
            return
        before = self.moments[-1].revision if self.moments and self.moments[-1].epoch == epoch else 0
        assert revision <= before + 1, "one operation took several revisions"
        change = state.change_log.last
        rows = state_of(state.snapshot())
        self.moments.append(Moment(epoch, revision, change.applied_at_millis, rows, self._reasons()))

    def _reasons(self) -> dict[tuple[str, str], str]:
        state = self.fleet.state
        last = state.change_log.last
        found: dict[tuple[str, str], str] = {}
        for message in change_messages(last, last.revision, state.identity):
            for change in pb.StreamRouteChangesResponse.FromString(message).changes.changes:
                kind = str(change.WhichOneof("row"))
                if kind.endswith("_removed"):
                    table, *key = key_of(change)
                    reason = route_data_pb2.RemovalReason.Name(getattr(change, kind).reason)
                    found[_TABLES[table], "/".join(key)] = reason.removeprefix("REMOVAL_REASON_")
        return found

    def GetNamesrvStatus(self, *_: object) -> pb.GetNamesrvStatusResponse:  # noqa: N802
        state = self.fleet.state
        return pb.GetNamesrvStatusResponse(
            header=state.header(), compacted_revision=state.change_log.compacted_revision, warm=True
        )

    def PinRouteSnapshot(self, *_: object) -> pb.PinRouteSnapshotResponse:  # noqa: N802
        pin_id = f"pin-{len(self.pins)}"
        self.pins[pin_id] = self.fleet.state.snapshot()
        header = self.fleet.state.header()
        return pb.PinRouteSnapshotResponse(header=header, pin_id=pin_id, lease_millis=600_000, warm=True)

    def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, _: object
    ) -> Iterator[pb.StreamRouteSnapshotResponse]:
        return _parsed(self.pins[request.pin_id])

    def StreamRouteChanges(  # noqa: N802
        self, request: pb.StreamRouteChangesRequest, _: object
    ) -> Iterator[pb.StreamRouteChangesResponse]:
        state = self.fleet.state
        first = state.change_log.after(request.after.revision)
        for message in change_messages(first, request.up_to_revision, state.identity):
            if message:
                yield pb.StreamRouteChangesResponse.FromString(message)


@dataclass
class BrokerProcess:
    """A broker, as it lives: what it registers, and where it is known with a channel."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    topics: list[str]
    counter: int = 1
    up: bool = True
    channels: dict[str, str] = field(default_factory=dict)


class FleetLife:
    """Deploys, drains, crashes, silence, and name servers that are lost and restarted."""

    def __init__(self, seed: int, namesrvs: list[LivingNamesrv], clock: VirtualClock) -> None:
        self._random = random.Random(seed)
        self._namesrvs = namesrvs
        self._clock = clock
        self._deployed = 0
        self._brokers = [
            BrokerProcess(f"c{number % 2}", f"broker-{number}", broker_id, f"10.0.{number}.{broker_id}:10911", ["Base"])
            for number in range(4)
            for broker_id in (0, 1)
        ]
        for broker in self._brokers:
            self._register(broker)

    def pass_time(self, seconds: float) -> None:
        """Lives for a while; every few seconds something happens."""
        until = self._clock.seconds + seconds
        while self._clock.seconds < until:
            self._clock.advance(self._random.uniform(2, 20))
            happens = self._random.choices(
                (self._deploy, self._drain, self._crash, self._come_back, self._fall_silent, self._scan, self._outage),
                (5, 1, 2, 4, 1, 2, 1),
            )[0]
            happens()

    def _deploy(self) -> None:
        """A broker gets a topic, or loses one, and tells."""
        broker = self._random.choice(self._brokers)
        if not broker.up:
            return
        self._deployed += 1
        broker.counter += 1
        if len(broker.topics) > 1 and self._random.random() < 0.3:
            broker.topics.remove(self._random.choice(broker.topics[1:]))
        else:
            broker.topics.append(f"T{self._deployed}")
        self._register(broker)

    def _drain(self) -> None:
        broker = self._random.choice(self._brokers)
        for namesrv in self._reached():
            namesrv.fleet.unregister(broker.addr, name=broker.name, cluster=broker.cluster)
            namesrv.note()
        broker.up = False

    def _crash(self) -> None:
        """Its channels end; a name server that is cut off from it learns nothing until it scans."""
        broker = self._random.choice(self._brokers)
        for namesrv in self._reached():
            if channel_id := broker.channels.pop(namesrv.name, None):
                namesrv.fleet.end_channel(channel_id)
                namesrv.note()
        broker.up = False

    def _fall_silent(self) -> None:
        self._random.choice(self._brokers).up = False

    def _come_back(self) -> None:
        broker = self._random.choice(self._brokers)
        broker.up = True
        broker.counter += 1
        self._register(broker)

    def _scan(self) -> None:
        """Those that live are seen; the others are over their time."""
        self._clock.advance(70)
        for broker in self._brokers:
            if broker.up:
                self._register(broker)
        self._clock.advance(70)
        for namesrv in self._namesrvs:
            for change in scan_not_active_broker(namesrv.fleet.state):
                apply_now(change)
                namesrv.note()

    def _outage(self) -> None:
        """A name server cannot be reached, or it is restarted and the brokers that live register again."""
        namesrv = self._random.choice(self._namesrvs)
        is_lost = namesrv.refusal is None and self._random.random() < 0.7
        namesrv.refusal = _LOST if is_lost else None
        if self._random.random() < 0.4:
            namesrv.begin_anew()
            for broker in self._brokers:
                broker.channels.pop(namesrv.name, None)
                if broker.up:
                    self._register(broker)

    def _register(self, broker: BrokerProcess) -> None:
        for namesrv in self._reached():
            fleet = namesrv.fleet
            if broker.name.endswith(("0", "1")) and broker.channels.get(namesrv.name) is None:
                broker.channels[namesrv.name] = fleet.state.open_channel()
            fleet.register(
                broker.addr,
                broker.broker_id,
                broker.topics,
                name=broker.name,
                cluster=broker.cluster,
                version=DataVersion(1_000, broker.counter),
                channel_id=broker.channels.get(namesrv.name),
            )
            namesrv.note()

    def _reached(self) -> list[LivingNamesrv]:
        """Most calls reach every name server; some miss one."""
        missed = self._random.choice(self._namesrvs) if self._random.random() < 0.1 else None
        return [namesrv for namesrv in self._namesrvs if namesrv is not missed]


class ExpectedHistory:
    """The history that the log should have, from what could be seen at each ingest."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self.snapshots = 0
        self._open: dict[tuple[str, str, str], tuple[Row, tuple[str, int], int]] = {}
        self._seen: dict[str, tuple[str, int]] = {}

    def ingest(self, namesrv: LivingNamesrv, now_millis: int) -> None:
        """Takes up what an ingest sees of a name server."""
        if namesrv.refusal:
            return
        latest = namesrv.moments[-1]
        epoch, revision = self._seen.get(namesrv.name, ("", 0))
        self._seen[namesrv.name] = latest[:2]
        compacted = namesrv.fleet.state.change_log.compacted_revision
        if epoch != latest.epoch or compacted > revision:
            self.snapshots += 1
            self._take(namesrv.name, latest._replace(at_millis=now_millis, reasons={}), "NOT_IN_SNAPSHOT")
            return
        for moment in namesrv.moments:
            if moment.epoch == epoch and moment.revision > revision:
                self._take(namesrv.name, moment, None)

    def ended(self) -> list[Version]:
        """All versions, with those that are still there."""
        still = [
            Version(*key, content, point, millis, None, None, None)
            for key, (content, point, millis) in self._open.items()
        ]
        return self.versions + still

    def _take(self, name: str, moment: Moment, reason: str | None) -> None:
        point = (moment.epoch, moment.revision)
        for key in [key for key in self._open if key[0] == name and key[1:] not in moment.state]:
            self._end(key, point, moment.at_millis, reason or moment.reasons[key[1:]])
        for (table, row_key), content in moment.state.items():
            key = (name, table, row_key)
            if key in self._open and self._open[key][0] == content:
                continue
            if key in self._open:
                self._end(key, point, moment.at_millis, "CHANGED")
            self._open[key] = (content, point, moment.at_millis)

    def _end(self, key: tuple[str, str, str], point: tuple[str, int], millis: int, reason: str) -> None:
        content, from_point, from_millis = self._open.pop(key)
        self.versions.append(Version(*key, content, from_point, from_millis, point, millis, reason))


def versions_of(place: Place) -> list[Version]:
    """All versions in a log, as the pipeline computes them."""
    with questions(place) as asked:
        rows = asked.ask("from history")
    return [
        Version(
            namesrv=row["namesrv"],
            table=row["table_name"],
            key=row["key"],
            content=content_of(row["table_name"], row),
            from_point=(row["valid_from_epoch"], row["valid_from_revision"]),
            from_millis=_millis(row["valid_from"]),
            to_point=None if row["end_reason"] is None else (row["valid_to_epoch"], row["valid_to_revision"]),
            to_millis=None if row["valid_to"] is None else _millis(row["valid_to"]),
            end_reason=row["end_reason"],
        )
        for row in rows
    ]


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class LoggedLife:
    """Name servers whose fleet lives by a seed, the log that ingests make of it, and the history that log must have."""

    def __init__(self, place: Place, stack: ExitStack, seed: int, *names: str) -> None:
        self.place = place
        self.clock = VirtualClock()
        self.namesrvs = [stack.enter_context(LivingNamesrv(name, self.clock)) for name in names]
        self.expected = ExpectedHistory()
        self._life = FleetLife(seed, self.namesrvs, self.clock)

    def go_on(self, seconds: float) -> None:
        """Something happens; then the model is notified of the next ingest. Not all name servers are lost."""
        self._life.pass_time(seconds)
        none_is_left = all(namesrv.refusal for namesrv in self.namesrvs)
        for namesrv in self.namesrvs:
            namesrv.refusal = None if none_is_left else namesrv.refusal
            self.expected.ingest(namesrv, self.clock.wall_millis())

    def open_log(self) -> RouteLog:
        """A writer of the log, whose time is that of the fleet."""
        return RouteLog(self.place, now=lambda: datetime.fromtimestamp(self.clock.wall_millis() / 1000, UTC))

    def ingest(self, log: RouteLog) -> None:
        """Appends what has happened."""
        Ingester(ingest_options([namesrv.endpoint for namesrv in self.namesrvs], OPTIONS), log).once()

    def check(self) -> None:
        """The log's history is the model's, and no row of the log is there twice."""
        assert sorted(versions_of(self.place), key=repr) == sorted(self.expected.ended(), key=repr)
        columns = "namesrv, epoch, revision, table_name, key, from_snapshot, op"
        with questions(self.place) as asked:
            twice = f"select {columns} from log where kind = 'changes' group by all having count(*) > 1"
            assert asked.ask(twice) == []
