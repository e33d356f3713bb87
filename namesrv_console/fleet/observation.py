"""The console's observation of one name server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint


class BrokerKey(NamedTuple):
    """One broker, wherever it is registered."""

    cluster: str
    broker: str
    id: int
    addr: str


class Reported(NamedTuple):
    """What a name server holds of a broker, in short: two that hold the same have the same."""

    version: int
    """Counter of the broker's DataVersion."""
    digest: bytes


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one name server but for its topics, as of one reading of them."""

    revision: int
    taken_at_millis: int
    """By the name server's clock."""
    read_at_millis: int
    """By ours."""
    lives: Mapping[BrokerKey, route_data_pb2.BrokerLiveInfo]
    intents: tuple[admin_service_pb2.Intent, ...]
    reported: Mapping[BrokerKey, Reported]
    """Of the revision, or of a later one: digests are read after the brokers."""

    def heard_at(self, key: BrokerKey) -> int:
        """When a broker was heard of last, by our clock, milliseconds since the Unix epoch.

        Two clocks that differ cancel out: the name server's says how long ago it was when the tables were taken.
        """
        return self.read_at_millis - (self.taken_at_millis - self.lives[key].last_update_timestamp_millis)


@dataclass(frozen=True, slots=True)
class Observation:
    """One name server as it was when it was asked last. What it said before it became unreachable is kept."""

    endpoint: Endpoint
    status: pb.GetNamesrvStatusResponse | None = None
    """None if it never answered."""
    tables: Tables | None = None
    latest: tuple[admin_service_pb2.AuditEntry, ...] = field(default=())
    """The newest entries of its journal, newest first."""
    answered_at_millis: int | None = None
    """When it answered last, by our clock."""
    problem: str | None = None
    """Why it cannot be asked; None while it answers."""
    refusal: str | None = None
    """What it refuses to tell, if anything; the rest is shown."""

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was asked last."""
        return self.problem is None and self.status is not None

    @property
    def asked(self) -> bool:
        """Whether it has been asked at all: one that has not is neither reachable nor unreachable."""
        return self.problem is not None or self.status is not None

    @property
    def name(self) -> str:
        """Its own name for itself, or its address until it said one."""
        return self.status.header.namesrv_name if self.status else str(self.endpoint)
