"""Quotas: how much of each limited resource one caller may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from namesrv import limits
from namesrv.core.errors import Refused, limit_exceeded, overloaded
from namesrv.core.pins import MAX_PINNED_REVISIONS, MAX_PINS, too_many_pins
from namesrv_common.server.shares import Refusal, ShareRules, Shares


def _too_much(what: str, value: int, limit: int, caller: str) -> Refused:
    """The error where a retry helps, because the resource will be released soon."""
    return overloaded(f"{what}: {value} is over the limit of {limit} for {caller}")


@dataclass(frozen=True, slots=True)
class FairShares:
    """All of them, by kind; one for a whole server."""

    lookups: Shares
    """Unary calls of RouteService and DiagnosticsService under way."""
    registrations: Shares
    """Unary calls of RegistrationService under way."""
    admin_calls: Shares
    """Unary calls of AdminService under way."""
    streams: Shares
    """Streams of any service."""
    probes: Shares
    """Open calls of health."""
    reflections: Shares
    """Open calls of reflection."""
    request_bytes: Shares
    """Bytes of large requests from parsing to answer."""
    registered_topics: Shares
    """Topics of registrations from before they are read to the answer."""
    channels: Shares
    watches: Shares
    """Open watches and followed snapshots."""
    watched_names: Shares
    snapshot_streams: Shares
    """Snapshots, or changes up to a revision, on their way."""
    pins: Shares
    pinned_revisions: Shares

    @classmethod
    def of(cls, rules: ShareRules | None = None, **most: int) -> FairShares:
        """Makes them with rules for one caller; ``most`` has other bounds than those of ``limits``, by kind."""

        def passing(what: str, kind: str, usual: int) -> Shares:
            return Shares(what, most.get(kind, usual), rules, own=_too_much, full=_too_much)

        def lasting(what: str, kind: str, usual: int, full: Refusal = limit_exceeded) -> Shares:
            return Shares(what, most.get(kind, usual), rules, full=full)

        def of_pins(what: str, kind: str, usual: int) -> Shares:
            return Shares(what, most.get(kind, usual), rules, own=too_many_pins, full=too_many_pins)

        return cls(
            lookups=passing("lookups under way", "lookups", limits.MAX_LOOKUPS_UNDER_WAY),
            registrations=passing("registrations under way", "registrations", limits.MAX_REGISTRATIONS_UNDER_WAY),
            admin_calls=passing("calls of AdminService under way", "admin_calls", limits.MAX_ADMIN_CALLS_UNDER_WAY),
            streams=passing("streams under way", "streams", limits.MAX_STREAMS_UNDER_WAY),
            probes=passing("open calls of health", "probes", limits.MAX_PROBES_UNDER_WAY),
            reflections=passing("open calls of reflection", "reflections", limits.MAX_REFLECTIONS_UNDER_WAY),
            request_bytes=passing("bytes of requests under way", "request_bytes", limits.MAX_REQUEST_BYTES_UNDER_WAY),
            registered_topics=passing(
                "topics of registrations under way", "registered_topics", limits.MAX_TOPICS_UNDER_WAY
            ),
            channels=lasting("open channels", "channels", limits.MAX_CHANNELS),
            watches=lasting("open watches", "watches", limits.MAX_WATCHERS, _too_much),
            watched_names=lasting("topics and prefixes watched", "watched_names", limits.MAX_WATCHED_NAMES),
            snapshot_streams=lasting("snapshot streams", "snapshot_streams", limits.MAX_SNAPSHOT_STREAMS, _too_much),
            pins=of_pins("pins", "pins", MAX_PINS),
            pinned_revisions=of_pins("pinned revisions", "pinned_revisions", MAX_PINNED_REVISIONS),
        )

    def by_kind(self) -> Mapping[str, Shares]:
        return {kind.name: getattr(self, kind.name) for kind in fields(self)}
