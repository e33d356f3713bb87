"""Does a bad name server delay the registration with a good one? Five name servers, four of them bad.

Each name server is a process: one is healthy, one is stopped with SIGSTOP while its channel is open, one refuses
connections, one answers UNAVAILABLE, one takes three seconds for each answer. Measured is the time from the start of a
round until the healthy one has accepted the registration, with all five and with the healthy one alone, in turns.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.figures import Sample, machine_line, progress, shown, summarise, table, write_json
from broker_agent.broker_outer_api import BrokerOuterAPI
from broker_agent.channel import ConnectionOptions
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import BrokerState, Registration
from broker_agent.timing import Timing
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from groundwork.endpoints import Endpoint
from groundwork.logs import configure_logs
from tests.support.programs.agents import OddNameServer, free_port
from tests.support.programs.processes import NamesrvProcess

ROUND_SECONDS = 1.0
"""Time for a round: less than the slow name server takes, so that bad ones use it up."""
READY_SECONDS = 30.0
OPTIONS = ConnectionOptions(connect_timeout_millis=1_000, keepalive_time_millis=60_000, keepalive_timeout_millis=60_000)
ALONE, WITH_BAD = "the healthy name server alone", "beside a stopped, a refusing, an unavailable and a slow one"
ACCEPTED, ROUND = "until the healthy one has accepted", "until the round has ended"


class Fleet:
    """Name servers of which the first is healthy, and the rounds of registrations with them."""

    def __init__(self, broker_addr: str, endpoints: Sequence[Endpoint]) -> None:
        timing = Timing()
        self._state = BrokerState("DefaultCluster", "broker-a", 0, broker_addr, None, permission=6)
        self._ready = threading.Semaphore(0)
        self._accepted_at: list[float] = []
        healthy, *bad = endpoints
        self.targets = [NamesrvTarget(healthy, "bench", OPTIONS, self._opened, timing, on_accepted=self._accepted)]
        self.targets += [NamesrvTarget(endpoint, "bench", OPTIONS, lambda _target: None, timing) for endpoint in bad]
        self._api = BrokerOuterAPI(self.targets, timing)

    def _opened(self, target: NamesrvTarget) -> None:  # noqa: ARG002
        """The healthy one has a channel."""
        self._ready.release()

    def _accepted(self) -> None:
        """The healthy one has answered."""
        self._accepted_at.append(time.perf_counter())

    def open(self) -> None:
        """Opens all channels and waits for that to the healthy one."""
        for target in self.targets:
            target.open()
        assert self._ready.acquire(timeout=READY_SECONDS)

    def round(self, topics: Sequence[TopicConfig], counter: int) -> tuple[float, float]:
        """One forced round; returns its two times in milliseconds."""
        content = Registration(self._state, TopicConfigTable(DataVersion(1, counter), tuple(topics)))
        content.full()  # made once for all, so it is not what is measured
        self._accepted_at.clear()
        started = time.perf_counter()
        results = self._api.register_broker_all(content, force=True, timeout_seconds=ROUND_SECONDS)
        ended = time.perf_counter()
        assert [result.endpoint for result in results] == [self.targets[0].endpoint], results
        return (self._accepted_at[0] - started) * 1000, (ended - started) * 1000

    def close(self) -> None:
        """Ends all connections."""
        self._api.stop_registering()
        for target in self.targets:
            target.close()
        self._api.close()


@contextmanager
def fleets() -> Iterator[dict[str, Fleet]]:
    """The healthy name server alone, and with the bad ones."""
    with ExitStack() as stack:
        healthy = stack.enter_context(NamesrvProcess())
        stopped = stack.enter_context(NamesrvProcess())
        slow, unavailable = (stack.enter_context(OddNameServer(kind)) for kind in ("slow", "unavailable"))
        refusing = stack.enter_context(free_port())
        bad = (stopped.endpoint, refusing, unavailable.endpoint, slow.endpoint)
        found = {
            ALONE: Fleet("127.0.0.1:10911", [healthy.endpoint]),
            WITH_BAD: Fleet("127.0.0.1:10921", [healthy.endpoint, *bad]),
        }
        for fleet in found.values():
            stack.callback(fleet.close)
            fleet.open()
        stopped.signal(signal.SIGSTOP)
        yield found


def measure(topic_count: int, rounds: int) -> list[Sample]:
    """Registers in turns, alone and with the bad ones; the first round of each does not count."""
    topics = [TopicConfig(f"Topic{number:06}", 8, 8, 6) for number in range(topic_count)]
    samples = []
    with fleets() as found:
        for number in range(rounds + 1):
            progress(f"fan_out: round {number} of {rounds}")
            for name, fleet in found.items():
                accepted, ended = fleet.round(topics, number)
                if number:
                    samples += [Sample(name, ACCEPTED, "ms", accepted), Sample(name, ROUND, "ms", ended)]
    return sorted(samples, key=lambda sample: [ALONE, WITH_BAD].index(sample.workload))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and the ratio, writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m bench.fan_out", description="Measures rounds of registrations.")
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--topics", type=int, default=1_000, help="default: %(default)s")
    options = parser.parse_args(arguments)
    figures = summarise(measure(options.topics, options.rounds))
    medians = {figure.workload: figure.median for figure in figures if figure.name == ACCEPTED}
    ratio = medians[WITH_BAD] / medians[ALONE]
    print(machine_line())
    print(f"Registration of {options.topics:,} topics on loopback, {options.rounds} rounds in turns.")
    print(table(figures))
    print(f"ratio: {shown(ratio)} (the time with four bad name servers, divided by the time alone; medians)")
    if options.json:
        write_json(options.json, figures, rounds=options.rounds, topics=options.topics, ratio=ratio)


if __name__ == "__main__":
    configure_logs("text", "error")  # of the whole process: not for whoever calls main
    main()
