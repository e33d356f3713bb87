"""Which clients look topics up: a bounded list, recorded for as long as an operator asks.

It answers one question: may an old name server be switched off? Recording is off after a start and ends by itself,
because the event loop then answers every lookup.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from namesrv import limits

MAX_TEXT_BYTES = 255
"""Bytes of a text that are kept. The topic of a refused lookup may have any length and any characters."""


class ClientKey(NamedTuple):
    """What tells clients apart. Connections of one program are one client."""

    address: str
    """Without the port."""
    caller: str
    """Its principal; empty without permits."""
    protocol: str
    """``grpc`` or ``rocketmq``."""


@dataclass(slots=True)
class ClientLookups:
    """What a client has asked since recording began."""

    lookup_count: int
    first_at_millis: int
    last_at_millis: int
    last_topic: str


class LookupClients:
    """The clients of one name server. Used by the event loop alone."""

    def __init__(
        self,
        forget_answers: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
        wall_millis: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        most: int = limits.MAX_CLIENTS,
    ) -> None:
        """Records nothing yet.

        Args:
            forget_answers: Has the engine forget its answers, so that the next lookups reach the event loop.
        """
        self._forget_answers = forget_answers
        self._monotonic = monotonic
        self._wall_millis = wall_millis
        self._most = most
        self._ends: float | None = None
        self.since_millis: int | None = None
        """When recording began; None if it never did."""
        self.ends_at_millis = 0
        """When recording ends, or ended."""
        self.left_out_count = 0
        """Clients that gave way to others."""
        self.clients: OrderedDict[ClientKey, ClientLookups] = OrderedDict()
        """The client that asked last comes last."""

    @property
    def is_recording(self) -> bool:
        """Whether lookups are noted now; then no engine may keep their answers."""
        if self._ends is None:
            return False
        if self._monotonic() >= self._ends:
            self._ends = None
        return self._ends is not None

    def record(self, seconds: float) -> None:
        """Records for so long from now on, or ends at once for 0. A list that is over begins anew."""
        was_recording, now = self.is_recording, self._wall_millis()
        self.ends_at_millis = now + round(seconds * 1000)
        if not seconds:
            self._ends = None
            return
        self._ends = self._monotonic() + seconds
        if not was_recording:
            self.since_millis, self.left_out_count = now, 0
            self.clients.clear()
            self._forget_answers()

    def note(self, peer: str, caller: str, topic: str) -> None:
        """Notes a lookup. Call it only while recording.

        Args:
            peer: As gRPC or the remoting listener names it, with the protocol and the port.
            caller: Its name in the journal: its principal or, without permits, the peer.
        """
        kind, _, rest = peer.partition(":")
        address = unquote(rest).rpartition(":")[0].strip("[]")
        principal = "" if caller == peer else caller
        key = ClientKey(_short(address), _short(principal), "rocketmq" if kind == "rocketmq" else "grpc")
        now, topic = self._wall_millis(), _short(topic)
        client = self.clients.get(key)
        if client is None:
            if len(self.clients) >= self._most:
                self.clients.popitem(last=False)
                self.left_out_count += 1
            self.clients[key] = ClientLookups(1, now, now, topic)
            return
        client.lookup_count += 1
        client.last_at_millis, client.last_topic = now, topic
        self.clients.move_to_end(key)


def _short(text: str) -> str:
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
