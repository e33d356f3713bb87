"""Quotas: how much of each limited resource one caller may hold."""

from __future__ import annotations

from collections.abc import Mapping

from namesrv import limits
from namesrv.core.errors import Refused, limit_exceeded, overloaded
from namesrv.core.pins import MAX_PINNED_REVISIONS, MAX_PINS, too_many_pins
from namesrv_common.server.shares import Refusal, ShareRules, Shares


def _too_much(what: str, value: int, limit: int, caller: str) -> Refused:
    """The error where a retry helps, because the resource will be released soon."""
    return overloaded(f"{what}: {value} is over the limit of {limit} for {caller}")


class FairShares:
    """The shares of each kind; one for a whole server."""

    def __init__(self, rules: ShareRules | None = None, **most: int) -> None:
        """Makes them with rules for one caller; ``most`` has other bounds than those of ``limits``, by kind."""

        def of(kind: str, what: str, usual: int, own: Refusal = _too_much, full: Refusal = _too_much) -> Shares:
            return Shares(what, most.get(kind, usual), rules, own=own, full=full)

        self.lookups = of("lookups", "lookups under way", limits.MAX_LOOKUPS_UNDER_WAY)
        """Unary calls of RouteService and DiagnosticsService under way."""
        self.registrations = of("registrations", "registrations under way", limits.MAX_REGISTRATIONS_UNDER_WAY)
        """Unary calls of RegistrationService under way."""
        self.admin_calls = of("admin_calls", "calls of AdminService under way", limits.MAX_ADMIN_CALLS_UNDER_WAY)
        self.streams = of("streams", "streams under way", limits.MAX_STREAMS_UNDER_WAY)
        """Streams of any service."""
        self.probes = of("probes", "open calls of health", limits.MAX_PROBES_UNDER_WAY)
        self.reflections = of("reflections", "open calls of reflection", limits.MAX_REFLECTIONS_UNDER_WAY)
        self.request_bytes = of("request_bytes", "bytes of requests under way", limits.MAX_REQUEST_BYTES_UNDER_WAY)
        """Bytes of large requests from parsing to answer."""
        self.registered_topics = of(
            "registered_topics", "topics of registrations under way", limits.MAX_TOPICS_UNDER_WAY
        )
        """Topics of registrations from before they are read to the answer."""
        self.channels = of("channels", "open channels", limits.MAX_CHANNELS, limit_exceeded, limit_exceeded)
        self.watches = of("watches", "open watches", limits.MAX_WATCHERS, limit_exceeded)
        """Open watches and followed snapshots."""
        self.watched_names = of(
            "watched_names", "topics and prefixes watched", limits.MAX_WATCHED_NAMES, limit_exceeded, limit_exceeded
        )
        self.snapshot_streams = of("snapshot_streams", "snapshot streams", limits.MAX_SNAPSHOT_STREAMS, limit_exceeded)
        """Snapshots, or changes up to a revision, on their way."""
        self.pins = of("pins", "pins", MAX_PINS, too_many_pins, too_many_pins)
        self.pinned_revisions = of(
            "pinned_revisions", "pinned revisions", MAX_PINNED_REVISIONS, too_many_pins, too_many_pins
        )

    def by_kind(self) -> Mapping[str, Shares]:
        return vars(self)
