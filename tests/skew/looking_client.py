"""A client program of any version of the library: keeps one topic, and says what it knows on standard error.

Usage: ``looking_client.py NAME_SERVERS TOPIC``. Continues until it is ended.
"""

from __future__ import annotations

import json
import signal
import sys

from route_client import KnownRoute, RouteClient


def say(known: KnownRoute) -> None:
    """The addresses of a topic's brokers by group and id, and the queues for producers, as a log line."""
    groups, queue_datas = (known.route.broker_datas, known.route.queue_datas) if known.route else ((), ())
    brokers = {group.broker_name: dict(group.broker_addrs) for group in groups}
    queues = sum(queue.write_queue_nums for queue in queue_datas)
    sys.stderr.write(json.dumps({"event": "client_knows", "brokers": brokers, "queues": queues}) + "\n")
    sys.stderr.flush()


def main(names: str, topic: str) -> None:
    with RouteClient(names) as client:
        client.on_change(lambda change: say(change.after))
        say(client.route(topic))
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
