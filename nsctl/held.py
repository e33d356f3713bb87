"""What one name server holds, read whole and within bounds, and what is not the same at all of them."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from nsctl.output import Row, iso

SHOWN_VALUE = 60
"""Longest value that is shown as it is. Of a longer one the beginning and a digest are shown."""
LIVES, GROUPS, TOPICS = pb.ROUTE_TABLE_LIVE_BROKERS, pb.ROUTE_TABLE_BROKER_GROUPS, pb.ROUTE_TABLE_TOPIC_QUEUES

AnswerT = TypeVar("AnswerT")


class GroupKey(NamedTuple):
    """One broker group."""

    cluster: str
    broker: str

    def matches(self, group: tuple[str, str]) -> bool:
        """Whether it is that group. One with an empty cluster stands for the groups of its name in all clusters."""
        return self.broker == group[1] and self.cluster in ("", group[0])


def group_of(message: Any) -> GroupKey:
    """The group that a message of the contract is about."""
    return GroupKey(message.cluster_name, message.broker_name)


class BrokerKey(NamedTuple):
    """One broker, wherever it is registered."""

    cluster: str
    broker: str
    id: int
    addr: str


def broker_of(message: Any) -> BrokerKey:
    """The broker that a message of the contract is about."""
    return BrokerKey(message.cluster_name, message.broker_name, message.broker_id, message.broker_addr)


class Reported(NamedTuple):
    """What a broker reports, in short: if two name servers hold the same, these are equal."""

    version: int
    """Counter of the broker's DataVersion."""
    digest: bytes

    def __str__(self) -> str:
        """In words."""
        return f"version {self.version}, content {self.digest.hex()[:8]}"


class Clock(NamedTuple):
    """A name server's clock compared with this machine's, seconds since the Unix epoch."""

    began: float
    """By this machine's clock, before the call."""
    theirs: float
    """By the name server's clock, when it answered."""
    ended: float
    """By this machine's clock, after the response."""

    @property
    def skew(self) -> float:
        """The smallest possible distance of the two clocks, in seconds."""
        return max(self.began - self.theirs, self.theirs - self.ended)

    def millis_before(self, seconds: float) -> int:
        """So many seconds ago by the name server's clock, which may say any time, as a request may have it."""
        return min(max(0, int((self.theirs - seconds) * 1000)), 2**63 - 1)


# The tables of a name server.


class Tables(NamedTuple):
    """Tables of a name server as of one moment."""

    clock: Clock
    lives: dict[BrokerKey, route_data_pb2.BrokerLiveInfo]
    """By cluster, name and id."""
    groups: dict[GroupKey, route_data_pb2.BrokerData]
    """In the order in which the name server sent them."""
    routes: dict[str, route_data_pb2.TopicRouteData]
    """Of each topic, as readers get it."""

    @property
    def named(self) -> frozenset[str]:
        """Names of clusters and broker groups. Each has a topic of its own name."""
        return frozenset(name for group in self.groups for name in group)


def tables(server: NamesrvClient, *wanted: Any) -> Tables:
    """Reads tables of a name server: those of ``Tables``, or only some of them."""
    request = pb.StreamRouteSnapshotRequest(tables=wanted or (LIVES, GROUPS, TOPICS))
    began = theirs = ended = time.time()
    lives: dict[BrokerKey, route_data_pb2.BrokerLiveInfo] = {}
    groups: dict[GroupKey, route_data_pb2.BrokerData] = {}
    topics: list[pb.TopicQueues] = []
    for message in server.stream(server.route.StreamRouteSnapshot, request, server.timeout_seconds):
        if message.HasField("snapshot_header"):
            theirs, ended = message.snapshot_header.taken_at_millis / 1000, time.time()
        lives |= {broker_of(one): one for one in message.chunk.live_brokers}
        groups |= {group_of(one): one for one in message.chunk.broker_datas}
        topics += message.chunk.topics
    routes = {
        one.topic: route_data_pb2.TopicRouteData(
            queue_datas=one.queue_datas,
            broker_datas=[groups[key] for key in map(group_of, one.queue_datas) if key in groups],
        )
        for one in topics
    }
    return Tables(Clock(began, theirs, ended), dict(sorted(lives.items())), groups, routes)


# What operators made of a name server, and its journal.

INTENT_WORDS: Mapping[int, str] = {
    admin.Intent.KIND_WIPE_WRITE_PERM: "drain",
    admin.Intent.KIND_ADD_WRITE_PERM: "write permission given",
    admin.Intent.KIND_TOPIC_HOLD: "topic hold",
}
"""Kinds of intent in words for people."""


def caller_of(caller: str) -> str:
    """A caller without the port of its connection, which differs at each name server."""
    return re.sub(r"\Aipv[46]:(.+):[0-9]+\Z", r"\1", caller)


def all_intents(server: NamesrvClient) -> list[admin.Intent]:
    """Reads the intents in force at a name server, oldest first."""
    return list(server.items(server.admin.ListIntents, admin.ListIntentsRequest(page_size=1_000), "intents"))


def drains(intents: Iterable[admin.Intent]) -> dict[GroupKey, admin.Intent]:
    """The drains among intents that are in force, by group."""
    return {group_of(one): one for one in intents if one.kind == admin.Intent.KIND_WIPE_WRITE_PERM}


def kv_configs(server: NamesrvClient, namespace: str) -> list[admin.KvConfig]:
    """Reads the keys of a namespace with their values; without one, the namespaces."""
    request = admin.ListKvConfigsRequest(namespace=namespace)
    return list(server.items(server.admin.ListKvConfigs, request, "kv_configs"))


def kv_config(server: NamesrvClient) -> dict[tuple[str, str], str]:
    """Reads the whole KV configuration of a name server."""
    spaces = [one.namespace for one in kv_configs(server, "")]
    return {(one.namespace, one.key): one.value for space in spaces for one in kv_configs(server, space)}


@dataclass(frozen=True, slots=True)
class Held:
    """What one name server holds."""

    status: pb.GetNamesrvStatusResponse
    tables: Tables
    diagnostics: diagnostics_service_pb2.GetDiagnosticsResponse | None = None
    digests: Mapping[BrokerKey, Reported] | None = None
    intents: Sequence[admin.Intent] | None = None
    """None if the name server does not let the caller read them; so are the ones below."""
    kv: Mapping[tuple[str, str], str] | None = None
    """Values in short."""
    settings: Mapping[tuple[str], str] | None = None
    """Settings that can be changed over the wire."""
    entries: Sequence[admin.AuditEntry] | None = None
    """The newest first, from the journal."""
    refusal: str = ""
    """The reason for which the name server hides something; empty if it hides nothing."""

    @property
    def ends(self) -> Mapping[tuple[str, ...], str] | None:
        """The ends of intents in words."""
        return None if self.intents is None else {intent_key(one): until(one, "in force") for one in self.intents}


def read(
    server: NamesrvClient,
    known: Held | None = None,
    wanted: Sequence[Any] = (LIVES, GROUPS, TOPICS),
    most_entries: int = 0,
    journal_seconds: float | None = None,
) -> Held:
    """Reads what a name server holds. Raises CallError.

    Args:
        server: The name server.
        known: What it held before. While its revision stays, only the live brokers and its process are read again.
        wanted: Tables to read.
        most_entries: Entries of the journal at most.
        journal_seconds: Age of the oldest entry of the journal; None for any.
    """
    status = server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest())
    refusals: list[str] = []

    def unless_refused(ask: Callable[[], AnswerT]) -> AnswerT | None:
        try:
            return ask()
        except CallError as error:
            if error.unreachable and not error.error.reason:
                raise
            refusals.append(f"{error.reason}: {error.error.message}")
            return None

    about_process = diagnostics_service_pb2.GetDiagnosticsRequest()
    diagnostics = unless_refused(lambda: server.diagnostics.GetDiagnostics(about_process))
    if known is not None and point(known.status) == point(status):
        fresh = tables(server, LIVES)
        same = known.tables._replace(clock=fresh.clock, lives=fresh.lives)
        return replace(known, status=status, tables=same, diagnostics=diagnostics)
    found = tables(server, *wanted)
    from_millis = None if journal_seconds is None else found.clock.millis_before(journal_seconds)
    request = admin.ListAuditEntriesRequest(from_millis=from_millis, page_size=min(500, most_entries))
    brokers = server.items(server.route.GetRouteDigest, pb.GetRouteDigestRequest(page_size=2_000), "brokers")
    about_settings = admin.GetNamesrvConfigRequest()
    settings = unless_refused(lambda: server.admin.GetNamesrvConfig(about_settings).entries)
    return Held(
        status,
        found,
        diagnostics,
        {broker_of(one): Reported(one.data_version.counter, one.digest) for one in brokers},
        unless_refused(lambda: all_intents(server)),
        unless_refused(lambda: {key: shown_value(value) for key, value in kv_config(server).items()}),
        None if settings is None else {(one.key,): one.value for one in settings if one.updatable},
        unless_refused(
            lambda: list(islice(server.items(server.admin.ListAuditEntries, request, "entries"), most_entries))
        ),
        refusals[0] if refusals else "",
    )


def point(status: pb.GetNamesrvStatusResponse) -> tuple[str, int]:
    """Epoch and revision: while they stay, so do routes, intents, KV configuration, settings and journal."""
    return status.header.epoch, status.header.revision


# Intents and values in words: name servers are compared by them.


def intent_key(intent: admin.Intent) -> tuple[str, str, str, str]:
    """The subject of an intent: its kind in words, a cluster (empty for every cluster), a broker and a topic."""
    kind = INTENT_WORDS.get(intent.kind, f"intent {intent.kind}")
    return kind, intent.cluster_name, intent.broker_name, intent.topic


def until(intent: admin.Intent, endless: str) -> str:
    """When an intent ends, in words; those given for one without an end."""
    return f"until {iso(intent.ends_at_millis)}" if intent.HasField("ends_at_millis") else endless


def in_words(intent: Row) -> Row:
    """A row of an intent for people."""
    kind = INTENT_WORDS.get(admin.Intent.Kind.Value(f"KIND_{intent['kind']}"), intent["kind"])
    return {**intent, "kind": kind, "ends_at": intent.get("ends_at", "no end"), "caller": caller_of(intent["caller"])}


def shown_value(value: str) -> str:
    """A value of the KV configuration in short. Texts are equal if the values are."""
    if len(value) <= SHOWN_VALUE:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{value[: SHOWN_VALUE // 2]}... ({len(value):,} characters, SHA-256 {digest})"


# Whether anybody can write a topic, with the drains of operators and without them.

WRITE, READ = 2, 4


def lacks_writable_queue(
    route: route_data_pb2.TopicRouteData, restored: Collection[GroupKey] = (), drained: Collection[GroupKey] = ()
) -> bool:
    """Whether nobody can write a topic that somebody is meant to.

    A topic that may be neither read nor written on any broker is none of these: RocketMQ's brokers of release 5 have
    one each (``rmq_sys_SYNC_BROKER_MEMBER_...``, permission 1).

    Args:
        route: A topic's route.
        restored: Groups that are taken to have the permission that they report.
        drained: Groups that are taken to have no write permission.
    """
    if not any(_perm(queues, restored) & (READ | WRITE) for queues in route.queue_datas):
        return False
    masters = {
        group_of(group) for group in route.broker_datas if any(broker.broker_id == 0 for broker in group.broker_addrs)
    }.difference(drained)
    return not any(
        queues.write_queue_nums > 0 and _perm(queues, restored) & WRITE and group_of(queues) in masters
        for queues in route.queue_datas
    )


def _perm(queues: route_data_pb2.QueueData, restored: Collection[GroupKey]) -> int:
    return queues.reported_perm if queues.HasField("reported_perm") and group_of(queues) in restored else queues.perm
