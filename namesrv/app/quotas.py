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


def _kinds() -> dict[str, tuple[str, int, Refusal, Refusal]]:
    """The name of each kind in errors, its bound, and the errors where one caller's share or that of all is used up."""
    return {
        "lookups": ("lookups under way", limits.MAX_LOOKUPS_UNDER_WAY, _too_much, _too_much),
        "registrations": ("registrations under way", limits.MAX_REGISTRATIONS_UNDER_WAY, _too_much, _too_much),
        "admin_calls": ("calls of AdminService under way", limits.MAX_ADMIN_CALLS_UNDER_WAY, _too_much, _too_much),
        "streams": ("streams under way", limits.MAX_STREAMS_UNDER_WAY, _too_much, _too_much),
        "probes": ("open calls of health", limits.MAX_PROBES_UNDER_WAY, _too_much, _too_much),
        "reflections": ("open calls of reflection", limits.MAX_REFLECTIONS_UNDER_WAY, _too_much, _too_much),
        "request_bytes": ("bytes of requests under way", limits.MAX_REQUEST_BYTES_UNDER_WAY, _too_much, _too_much),
        "registered_topics": ("topics of registrations under way", limits.MAX_TOPICS_UNDER_WAY, _too_much, _too_much),
        "channels": ("open channels", limits.MAX_CHANNELS, limit_exceeded, limit_exceeded),
        "watches": ("open watches", limits.MAX_WATCHERS, limit_exceeded, _too_much),
        "watched_names": ("topics and prefixes watched", limits.MAX_WATCHED_NAMES, limit_exceeded, limit_exceeded),
        "snapshot_streams": ("snapshot streams", limits.MAX_SNAPSHOT_STREAMS, limit_exceeded, _too_much),
        "pins": ("pins", MAX_PINS, too_many_pins, too_many_pins),
        "pinned_revisions": ("pinned revisions", MAX_PINNED_REVISIONS, too_many_pins, too_many_pins),
    }


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
        made = {
            kind: Shares(what, most.get(kind, usual), rules, own=own, full=full)
            for kind, (what, usual, own, full) in _kinds().items()
        }
        return cls(**made)

    def by_kind(self) -> Mapping[str, Shares]:
        return {kind.name: getattr(self, kind.name) for kind in fields(self)}
