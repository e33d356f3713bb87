"""A program that behaves as a broker of RocketMQ does towards its name servers, over RocketMQ's own protocol.

``python -m tests.faults.fleet.stock_broker GROUP ID ADDRESS TOPICS_JSON PERIOD NAMESRV;NAMESRV``: registers with each
name server every period, and at once when its topics change. It sends a heartbeat each second, connects again after a
request that failed or took too long, and unregisters when it is asked to end.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.programs.rocketmq import RemotingClient, broker_fields

REGISTER, UNREGISTER, HEARTBEAT = 103, 104, 904
ONE_WAY = 2
HEARTBEAT_SECONDS = 1.0
TIMEOUT = 2.0
"""Of a request, and of a connection attempt (scaled down as the period is)."""
LOOK_SECONDS = 0.1
"""Between two looks at the topics and at whether to end."""


def body_of(topics: Path) -> bytes:
    """What a broker registers: all topics of a file, which others replace as a whole, and their version."""
    wrapper: dict[str, Any] = json.loads(topics.read_text(encoding="utf-8"))
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


class Registrar(threading.Thread):
    """Speaks to one name server."""

    def __init__(self, address: str, fields: dict[str, str], topics: Path, period: float) -> None:
        super().__init__(name=address, daemon=True)
        self._address = address
        self._fields = fields
        self._topics = topics
        self._period = period
        self._client: RemotingClient | None = None
        self._registered, self._said_at, self._due_at = b"", 0.0, 0.0
        self.ending = threading.Event()

    def run(self) -> None:
        """Speaks until it is to end; then it unregisters."""
        while not self.ending.wait(LOOK_SECONDS):
            try:
                self._speak()
            except (OSError, AssertionError, ValueError):  # lost, refused or broken off
                self._close()
        with suppress(OSError, AssertionError, ValueError):
            if self._client is not None:
                self._client.ask(UNREGISTER, self._fields)
        self._close()

    def _speak(self) -> None:
        body, now = body_of(self._topics), time.monotonic()
        if self._client is None:
            self._client = RemotingClient(self._address, timeout_seconds=TIMEOUT)
            self._due_at = now
        if now >= self._due_at or body != self._registered:
            crc32 = {"bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), "compressed": "false"}
            answer = self._client.ask(REGISTER, {**self._fields, **crc32}, body)
            if answer.code == 0:
                self._registered = body
            self._due_at = now + self._period
        elif now - self._said_at >= HEARTBEAT_SECONDS:
            self._client.send(HEARTBEAT, self._fields, flag=ONE_WAY)
            self._said_at = now

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


def main(group: str, broker_id: str, address: str, topics: str, period: str, namesrvs: str) -> None:
    """Runs until it is asked to end."""
    fields = {**broker_fields(group, address, int(broker_id)), "haServerAddr": address}
    registrars = [Registrar(namesrv, fields, Path(topics), float(period)) for namesrv in namesrvs.split(";")]
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    for registrar in registrars:
        registrar.start()
    sys.stderr.write(json.dumps({"event": "stock_broker_started"}) + "\n")
    sys.stderr.flush()
    asked_to_end.wait()
    for registrar in registrars:
        registrar.ending.set()
    for registrar in registrars:
        registrar.join(2 * TIMEOUT)


if __name__ == "__main__":
    main(*sys.argv[1:])
