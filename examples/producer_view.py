"""Prints what a producer knows about some topics, each time it changes.

    python examples/producer_view.py --namesrv "127.0.0.1:9876;127.0.0.1:9877" TopicTest

Without ``--namesrv`` the environment variable NAMESRV_ADDR has the name servers. Ends with Ctrl-C, or after
``--seconds``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from route_client import (
    ClientSettings,
    NoNamesrvAnsweredError,
    PublishInfo,
    RouteChange,
    RouteClient,
    RouteClientError,
    Stale,
    TopicNotFoundError,
)

STALE = {
    Stale.HELD: "all brokers are gone and nobody says why; going on with the old route for a while",
    Stale.FROM_DISK: "no name server answers; this is the route of an earlier run",
    Stale.DISCONNECTED: "no name server tells of changes at present",
}


def main() -> None:
    """Prints the topics' state, then each change."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it starts with "&"
    arguments = parsed_arguments()
    settings = ClientSettings(cache_dir=arguments.cache_dir)
    try:
        with RouteClient(arguments.namesrv, settings) as client:
            client.on_change(lambda change: say(described(change, client)))
            for topic in arguments.topics:
                begin(client, topic)
            time.sleep(arguments.seconds)
    except RouteClientError as error:
        sys.exit(f"producer_view: {error}")
    except KeyboardInterrupt:
        pass


def begin(client: RouteClient, topic: str) -> None:
    """Asks for a topic once; from then on the client keeps it. A route that there is comes as the first change."""
    try:
        client.route(topic)
    except (TopicNotFoundError, NoNamesrvAnsweredError) as error:
        say(f"{topic}: {error}; waiting for it")


def described(change: RouteChange, client: RouteClient) -> str:
    """One line about a change."""
    parts = []
    if change.new_route is None:
        parts.append("has no route any more")
    elif change.new_route != change.old_route:
        parts.append(shown(client.publish_info(change.topic)))
    parts += [f"{gone.broker_addr or gone.key.broker_name} left: {gone.reason_name}" for gone in change.removals]
    if change.after.stale is not None:
        parts.append(STALE[change.after.stale])
    elif change.before is not None and change.before.stale is not None:
        parts.append("confirmed by a name server")
    return f"{change.topic}: {'; '.join(parts)}"


def shown(info: PublishInfo) -> str:
    """The queues that a producer can send to."""
    numbers: dict[str, int] = {}
    for queue in info.queues:
        numbers[queue.broker_name] = numbers.get(queue.broker_name, 0) + 1
    if not numbers:
        return "has a route, but no queue to send to"
    return "send to " + ", ".join(f"{number} queues of {name}" for name, number in numbers.items())


def say(line: str) -> None:
    """Prints a line with the time."""
    now = time.time()
    sys.stdout.write(f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03} {line}\n")
    sys.stdout.flush()


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Print what a producer knows about topics, each time it changes.")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--namesrv", help="name servers, such as 'a:9876;b:9876' (default: $NAMESRV_ADDR)")
    parser.add_argument("--cache-dir", type=Path, help="folder that keeps routes for the next start")
    parser.add_argument("--seconds", type=float, default=86_400, help="when to end (default: after a day)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
