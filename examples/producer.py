"""A producer that loses no message to a lost name server, a lost broker or a drain.

    python examples/producer.py --namesrv "127.0.0.1:9876;127.0.0.1:9877" TopicTest

Prints what it knows about its topics each time that changes, and each second how many messages it has sent. A message
is a connection to the broker here: put your protocol's send into ``send``. Without ``--namesrv`` the environment
variable NAMESRV_ADDR has the name servers. Ends with Ctrl-C, or after ``--seconds``.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

from route_client import (
    ClientSettings,
    MessageQueue,
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
    Stale.DISCONNECTED: "no name server can be reached; going on with this route",
}


def main() -> None:
    """Sends messages, and prints the topics' state and each change."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it starts with "&"
    arguments = parsed_arguments()
    settings = ClientSettings(cache_dir=arguments.cache_dir, send_latency_fault_enable=True)
    try:
        with RouteClient(arguments.namesrv, settings) as client:
            client.on_change(lambda change: say(described(change, client)), arguments.topics)
            for topic in arguments.topics:
                begin(client, topic)
            produce(client, arguments.topics, arguments.rate, time.monotonic() + arguments.seconds)
    except RouteClientError as error:
        sys.exit(f"producer: {error}")
    except KeyboardInterrupt:
        pass


TRIES = 3
"""Brokers that are tried for one message (RocketMQ: retryTimesWhenSendFailed, 2 more)."""
SEND_SECONDS = 1.0
"""Time for one try."""


def produce(client: RouteClient, topics: list[str], rate: float, until: float) -> None:
    """Sends this many messages a second, and prints each second how many each broker took."""
    if rate == 0:
        time.sleep(max(0.0, until - time.monotonic()))
    counts: Counter[str] = Counter()
    next_report, number, problem = time.monotonic() + 1, 0, ""
    while rate and time.monotonic() < until:
        try:
            counts[deliver(client, topics[number % len(topics)])] += 1
        except (RouteClientError, OSError) as error:  # no topic, no name server, no writable queue, or no broker
            counts["nobody"], problem = counts["nobody"] + 1, f": {error}"
        number += 1
        if time.monotonic() >= next_report:
            say("sent to " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) + problem)
            counts.clear()
            next_report, problem = next_report + 1, ""
        time.sleep(1 / rate)


def deliver(client: RouteClient, topic: str) -> str:
    """Sends one message to a broker of the topic, or to another one if that fails. Returns the broker's name."""
    failed = None
    for tries_left in reversed(range(TRIES)):
        queue = client.select_one_queue(topic, failed)
        started = time.monotonic()
        try:
            send(client, queue)
        except OSError as error:
            client.faults.report(queue.broker_name, (time.monotonic() - started) * 1000, failed=True)
            if not tries_left:
                raise
            say(f"{topic}: {queue.broker_name} failed, another broker is next: {error}")
            failed = queue.broker_name
        else:
            client.faults.report(queue.broker_name, (time.monotonic() - started) * 1000)
            return queue.broker_name
    raise AssertionError("the last try returns or raises")


def send(client: RouteClient, queue: MessageQueue) -> None:
    """Sends a message to a queue. Raises OSError if that fails."""
    address = client.find_broker_address_in_publish(queue.broker_name, queue.cluster_name)
    if address is None:
        raise ConnectionError("it has no master now")
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), SEND_SECONDS).close()


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
    parser = argparse.ArgumentParser(description="Send messages, and print what a producer knows about its topics.")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--namesrv", help="name servers, such as 'a:9876;b:9876' (default: $NAMESRV_ADDR)")
    parser.add_argument("--cache-dir", type=Path, help="folder that keeps routes for the next start")
    parser.add_argument("--rate", type=float, default=10, help="messages a second; 0 only watches (default: 10)")
    parser.add_argument("--seconds", type=float, default=86_400, help="when to end (default: after a day)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
