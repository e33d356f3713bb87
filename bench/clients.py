"""Costs on the side of callers: ``python -m bench.clients``.

The agent's fan-out: the time until three healthy name servers have a registration, with and without two others, one
that is stopped and one that refuses connections. The client library: a lookup of a route that it keeps.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench.figures import Sample, parser, report, summarise
from broker_agent.broker_outer_api import BrokerOuterAPI
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import BrokerState, Registration
from broker_agent.timing import Timing
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.logs import configure_logs
from route_client import RouteClient
from tests.support.programs.agents import held_port
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import registration

_HEALTHY = 3
_ROUND_SECONDS = 1.0
"""Time for a round, which the stopped name server uses up."""


class FanOut:
    """Calls of an agent to name servers. The first ones are healthy."""

    def __init__(self, broker_addr: str, endpoints: Sequence[Endpoint]) -> None:
        timing, opened = Timing(), threading.Semaphore(0)
        self._accepted_at: list[float] = []
        self._state = BrokerState("DefaultCluster", f"broker-{broker_addr}", 0, broker_addr, None, permission=6)

        def make(endpoint: Endpoint) -> NamesrvTarget:
            return NamesrvTarget(
                endpoint,
                "bench",
                lambda _: opened.release(),
                timing,
                keepalive_seconds=60.0,
                on_accepted=lambda: self._accepted_at.append(time.perf_counter()),
            )

        listed = tuple(endpoints)
        self._api = BrokerOuterAPI(lambda: listed, make, lambda: self._content, _ROUND_SECONDS, timing)
        self._api.follow_list()
        assert all(opened.acquire(timeout=30) for _ in range(_HEALTHY))

    def round_millis(self, topics: Sequence[TopicConfig], counter: int) -> float:
        """Registers; returns the milliseconds until the last healthy name server had it."""
        self._content = Registration(self._state, TopicConfigTable(DataVersion(1, counter), tuple(topics)))
        self._content.full()  # encoded once for all name servers, and not measured
        self._accepted_at.clear()
        began = time.perf_counter()
        self._api.register_broker_all(force=True)
        assert len(self._accepted_at) == _HEALTHY, self._accepted_at
        return (max(self._accepted_at) - began) * 1000

    def close(self) -> None:
        """Ends all connections."""
        self._api.close()


def fan_out(topic_count: int, rounds: int) -> Iterator[Sample]:
    """Registers alternately with the healthy name servers alone and with the others; the first round does not count."""
    topics = [TopicConfig(f"Topic{number:06}", 8, 8, 6) for number in range(topic_count)]
    with ExitStack() as stack:
        *healthy, stopped = (stack.enter_context(NamesrvProcess()) for _ in range(_HEALTHY + 1))
        good = [namesrv.endpoint for namesrv in healthy]
        ways = {
            "three healthy name servers": FanOut("127.0.0.1:10911", good),
            "beside a stopped and a refusing one": FanOut(
                "127.0.0.1:10921", [*good, stack.enter_context(held_port()), stopped.endpoint]
            ),
        }
        for way in ways.values():
            stack.callback(way.close)
        stopped.signal(signal.SIGSTOP)
        for number in range(rounds + 1):
            for name, way in ways.items():
                millis = way.round_millis(topics, number + 1)
                if number:
                    yield Sample(f"registration of {topic_count:,} topics", name, "ms", millis)


def cached_lookups(lookups: int, rounds: int) -> Iterator[Sample]:
    """Lookups of a route that the client keeps."""
    with NamesrvProcess() as namesrv, namesrv.connect() as connection:
        connection.registration.RegisterBroker(registration(("TopicTest",)), timeout=connection.TIMEOUT)
        with RouteClient(str(namesrv.endpoint)) as client:
            eventually(lambda: client.route("TopicTest"))
            for _ in range(rounds):
                began = time.perf_counter()
                for _ in range(lookups):
                    client.route("TopicTest")
                micros = (time.perf_counter() - began) / lookups * 1e6
                yield Sample("the client library", "lookup of a route that it keeps", "µs", micros)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    given = parser("clients", __doc__).parse_args(arguments)
    configure_logs("text", "error")
    topics, lookups, rounds = (10, 100, 1) if given.smoke else (1_000, 100_000, given.rounds)
    report(given, summarise([*fan_out(topics, rounds), *cached_lookups(lookups, rounds)]))


if __name__ == "__main__":
    main()
