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
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.programs.rocketmq import RemotingClient, broker_fields, register

UNREGISTER, HEARTBEAT = 104, 904
ONE_WAY = 2
HEARTBEAT_SECONDS = 1.0
TIMEOUT = 2.0
"""Of a request, and of a connection attempt (scaled down as the period is)."""
LOOK_SECONDS = 0.1
"""Between two looks at the topics and at whether to end."""
BROKEN_OFF = (OSError, AssertionError, ValueError)
"""What ends a connection: it was lost or refused, or broke off."""


def speak(address: str, fields: dict[str, str], topics: Path, period: float, ending: threading.Event) -> None:
    """Speaks to one name server until it is to end; then it unregisters."""
    client: RemotingClient | None = None
    registered: dict[str, Any] = {}
    said_at = due_at = 0.0
    while not ending.wait(LOOK_SECONDS):
        try:
            # Others replace the file as a whole.
            table, now = json.loads(topics.read_text(encoding="utf-8")), time.monotonic()
            if client is None:
                client, due_at = RemotingClient(address, timeout_seconds=TIMEOUT), now
            if now >= due_at or table != registered:
                if register(client, (), fields, **table).code == 0:
                    registered = table
                due_at = now + period
            elif now - said_at >= HEARTBEAT_SECONDS:
                client.send(HEARTBEAT, fields, flag=ONE_WAY)
                said_at = now
        except BROKEN_OFF:
            if client is not None:
                client.close()
            client = None
    if client is not None:
        with suppress(*BROKEN_OFF):
            client.ask(UNREGISTER, fields)
        client.close()


def main(group: str, broker_id: str, address: str, topics: str, period: str, namesrvs: str) -> None:
    """Runs until it is asked to end."""
    fields = {**broker_fields(group, address, int(broker_id)), "haServerAddr": address}
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    threads = [
        threading.Thread(target=speak, args=(namesrv, fields, Path(topics), float(period), ending), daemon=True)
        for namesrv in namesrvs.split(";")
    ]
    for thread in threads:
        thread.start()
    sys.stderr.write(json.dumps({"event": "stock_broker_started"}) + "\n")
    sys.stderr.flush()
    ending.wait()
    for thread in threads:
        thread.join(2 * TIMEOUT)


if __name__ == "__main__":
    main(*sys.argv[1:])
