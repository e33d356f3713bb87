"""Times until a lost broker is gone and a lost name server back: ``python -m bench.detection``.

Prints the median and the range of each, in seconds.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import grpc
from namesrv_api.v1 import route_service_pb2

from bench.figures import Sample, parser, report, summarise
from tests.faults.network.proxy import Link, Proxy
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually

ADDRS = {number: f"127.0.0.1:{10911 + number}" for number in range(3)}
"""A group of three, so that the loss of one is not that of everything."""
LOST = 2
DEFAULT_WARM_UP = ("--warm-up-millis", "45000")
LONGEST_SECONDS = 90.0
WORKLOAD = "a name server with default settings, and a group of three brokers"
"""Under which name the figures are kept."""
SNAPSHOT = ("--snapshot-interval-millis", "200", "--log-level", "debug")


class Site:
    """A name server and the agents of a group, one of them over a link that can be cut."""

    def __init__(self, stack: ExitStack, *namesrv_flags: str) -> None:
        self._stack = stack
        self._flags = (*DEFAULT_WARM_UP, *namesrv_flags)
        self.proxy = stack.enter_context(Proxy(seed=1))
        self.server = stack.enter_context(NamesrvProcess(*self._flags))
        self.link: Link = self.proxy.link(self.server.endpoint)
        self.agents = {number: self._start(number) for number in ADDRS}
        self.client: Client = stack.enter_context(self.server.connect())
        eventually(self.addrs, ADDRS.__eq__)

    def _start(self, number: int) -> Agent:
        way = self.link.listen if number == LOST else self.server.endpoint
        return self._stack.enter_context(Agent(str(way), broker_id=number, broker_addr=ADDRS[number]))

    def addrs(self) -> dict[int, str]:
        """Who is in the route; nobody if the name server cannot say."""
        try:
            return self.client.addrs()
        except grpc.RpcError:
            return {}

    def seconds_until(self, reached: Callable[[], bool]) -> float:
        """How long it takes until something is so."""
        began = time.monotonic()
        eventually(reached, within_seconds=LONGEST_SECONDS)
        return time.monotonic() - began

    def is_gone(self) -> bool:
        """Whether the lost broker has left the route."""
        return LOST not in self.addrs()

    def is_warm(self) -> bool:
        """Whether the name server knows what is not there."""
        try:
            request = route_service_pb2.GetNamesrvStatusRequest()
            return self.client.routes.GetNamesrvStatus(request, timeout=5).warm
        except grpc.RpcError:
            return False

    def restart_killed(self) -> None:
        """Kills the name server and starts another in its place."""
        self.server.kill()
        self.server = self._stack.enter_context(NamesrvProcess(*self._flags, port=self.server.endpoint.port))
        self.client = self._stack.enter_context(self.server.connect())


def killed() -> dict[str, float]:
    """The agent's process is killed."""
    with ExitStack() as stack:
        site = Site(stack)
        site.agents[LOST].kill()
        return {"broker killed": site.seconds_until(site.is_gone)}


def stopped() -> dict[str, float]:
    """The agent's process is stopped and keeps its connections."""
    with ExitStack() as stack:
        site = Site(stack)
        site.agents[LOST].signal(signal.SIGSTOP)
        return {"broker stopped": site.seconds_until(site.is_gone)}


def cut_off() -> dict[str, float]:
    """Nothing passes between the agent and the name server; then everything again."""
    with ExitStack() as stack:
        site = Site(stack)
        site.proxy.cut(site.link)
        gone = site.seconds_until(site.is_gone)
        site.proxy.heal(site.link)
        return {"broker cut off": gone, "broker back after the cut": site.seconds_until(lambda: site.addrs() == ADDRS)}


def cold() -> dict[str, float]:
    """A name server without a data directory is killed and started again."""
    with ExitStack() as stack:
        return _killed_and_started_again(Site(stack), "cold name server")


def warm() -> dict[str, float]:
    """A name server with a snapshot file is killed and started again."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        site = Site(stack, "--data-dir", folder, *SNAPSHOT)
        eventually(lambda: site.server.events("namesrv_warm"), within_seconds=LONGEST_SECONDS)
        eventually(lambda: any(line["revision"] >= len(ADDRS) for line in site.server.events("snapshot_written")))
        return _killed_and_started_again(site, "warm name server")


def _killed_and_started_again(site: Site, name: str) -> dict[str, float]:
    began = time.monotonic()
    site.restart_killed()
    eventually(site.addrs, ADDRS.__eq__)
    complete = time.monotonic() - began
    site.seconds_until(site.is_warm)
    return {f"{name}: all routes": complete, f"{name}: ready": time.monotonic() - began}


MEASURED = (killed, stopped, cut_off, cold, warm)


def samples(measured: Iterable[Callable[[], dict[str, float]]]) -> Iterator[Sample]:
    """Measures the given events, one after the other."""
    return (Sample(WORKLOAD, what, "s", seconds) for measure in measured for what, seconds in measure().items())


def main() -> None:
    """Measures and prints."""
    options = parser("detection", __doc__).parse_args()
    report(options, summarise(samples(MEASURED * options.rounds)))


if __name__ == "__main__":
    main()
