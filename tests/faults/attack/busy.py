"""Attacks that keep a server busy from one address, and how honest clients of another address fare meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

from groundwork.endpoints import Endpoint
from tests.faults.attack import addresses, busy_attacks, honest
from tests.faults.attack.runner import (
    MOST_MEBIBYTES,
    NO_SCAN,
    PAUSE_SECONDS,
    REST_SECONDS,
    ROOT,
    SETTLED_MEBIBYTES,
    Held,
    register_topics,
)
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration, unregister_all
from tests.support.secured.fleet import Place

LEAD_SECONDS = 1.0
"""For which the attack runs before honest clients call."""
END_SECONDS = 60.0
OF_LOOKUPS, OF_LARGE = "lookups-of-few", "one-large-registration"
"""The controls: what others are compared with."""
MORE_MILLIS = {"lookups": 20.0, "misses": 100.0, "heartbeats": 100.0}
"""How much longer than with the control the 99th percentile of a call may be."""
MOST_MILLIS = {"1,000 topics": 1_000.0}
TIMES = {"100,000 topics": 2.0}
"""How many times as long as with the control the slowest may be."""
COLUMNS = (
    *("lookups", "new connections", "misses", "heartbeats", "1,000 topics", "100,000 topics"),
    *("remoting lookups", "remoting 1,000 topics"),
)
HEAD = f"| attack | connections | failed | {' | '.join(COLUMNS)} | MiB | verdict |\n|{'---|' * (len(COLUMNS) + 5)}"


class Busy(NamedTuple):
    """The outcome of an attack."""

    attack: str
    connections: str
    """Of the attacker: how many it had."""
    calls: int
    problems: list[str]
    """What was wrong with honest calls."""
    p99: Mapping[str, float]
    """Milliseconds by kind of call."""
    slowest: Mapping[str, float]
    before: int
    peak: int
    kept: int
    """MiB of the server: before, the most, and how many more some seconds later."""

    def verdict(self, controls: Mapping[str, Busy]) -> str:
        """In a word or two."""
        if self.problems:
            return f"FAILED: {self.problems[0]}"
        few, large = controls.get(OF_LOOKUPS, self), controls.get(OF_LARGE, self)
        most = {kind: few.p99.get(kind, 0.0) + more for kind, more in MORE_MILLIS.items()}
        slow = [kind for kind in most if self.p99.get(kind, 0.0) > most[kind]]
        slow += [kind for kind, limit in MOST_MILLIS.items() if self.slowest.get(kind, 0.0) > limit]
        most = {kind: times * large.slowest.get(kind, 0.0) for kind, times in TIMES.items()}
        slow += [kind for kind, limit in most.items() if self.slowest.get(kind, 0.0) > limit]
        if slow:
            return f"SLOW: {', '.join(slow)}"
        return f"FAILED: {self.kept} MiB stayed" if self.kept > MOST_MEBIBYTES else "held"

    def row(self, controls: Mapping[str, Busy]) -> str:
        """Of the table: the 99th percentile and the slowest of each kind, in milliseconds."""
        times = [f"{self.p99[kind]:,.0f} ({self.slowest[kind]:,.0f})" if kind in self.p99 else "" for kind in COLUMNS]
        fields = (self.attack, self.connections, f"{len(self.problems)} of {self.calls}", *times)
        return f"| {' | '.join(fields)} | {self.before}, {self.peak}, {self.kept:+} | {self.verdict(controls)} |"


def outcomes(seconds: float, wanted: frozenset[str]) -> Iterator[Busy]:
    """Runs the attacks that are wanted, all if none is named, each on a server of its own. Controls come first."""
    for listener, attacks in busy_attacks.ATTACKS.items():
        for name in attacks:
            if not wanted or name in wanted:
                yield _run(name, listener, seconds)


def _run(name: str, listener: str, seconds: float) -> Busy:
    with ExitStack() as stack:
        flags, authorities = ["--remoting-listen", "0.0.0.0:0"], ""
        if listener == "busy tls":
            place = Place.make(Path(stack.enter_context(TemporaryDirectory())))
            place.authority.sign("localhost", ["localhost"], ips=[addresses.HONEST], file_name="server")
            flags, authorities = list(place.flags("TLS", with_permits=False)), str(place.authority.path)
        server = stack.enter_context(NamesrvProcess(*NO_SCAN, "--listen", "0.0.0.0:0", "--allow-insecure", *flags))
        remoting = "" if authorities else str(server.wait_for("namesrv_started")["remoting"])
        port = Endpoint.parse(remoting).port if listener == "busy remoting" else server.endpoint.port
        if not authorities:
            with server.connect() as client:
                _fill_change_log(client)
                register_topics(client)
        before = Held.counting_anew(server).mebibytes
        setup = honest.Setup(
            f"{addresses.HONEST}:{server.endpoint.port}",
            f"{addresses.HONEST}:{Endpoint.parse(remoting).port}" if remoting else "",
            authorities,
            seconds,
        )
        results, left, said = _beside((listener, name, str(port)), setup, server)
        if not authorities:
            with server.connect() as client:
                unregister_all(client)  # what brokers of the attack have registered is no leak
        peak, until = Held.of(server).peak_mebibytes, time.monotonic() + REST_SECONDS
        while (kept := Held.of(server).mebibytes - before) > SETTLED_MEBIBYTES and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        problems = [f"{kind}: {text}" for kind, result in results.items() for text in result["problems"]]
        problems += [f"left: {gone}" for gone in left]
        took = {kind: [1000 * each for each in result["took"]] for kind, result in results.items() if result["took"]}
        p99 = {kind: quantiles([*each, each[-1]], n=100, method="inclusive")[98] for kind, each in took.items()}
        slowest = {kind: max(each) for kind, each in took.items()}
        calls = len(problems) + sum(map(len, took.values()))
        return Busy(name, said, calls, problems, p99, slowest, before, peak, kept)


def _fill_change_log(client: Client) -> None:
    """Fills the log of changes, which keeps 500,000 rows: what attackers register replaces rows, and adds none."""
    for counter in (1, 2):
        large = registration([f"log-{number}" for number in range(busy_attacks.LARGE_TOPICS)], counter=counter)
        client.registration.RegisterBroker(large, timeout=END_SECONDS)
        unregister_all(client)


def _beside(
    attack: tuple[str, str, str], setup: honest.Setup, server: NamesrvProcess
) -> tuple[dict[str, dict[str, list[float]]], list[str], str]:
    """What honest clients tell, which of their brokers left, and what the attacker says of its connections."""
    seconds = LEAD_SECONDS + setup.seconds
    by_hand = [sys.executable, "-m", "tests.faults.attack.catalogue", *attack, str(seconds)]
    ask = [sys.executable, "-m", "tests.faults.attack.honest", json.dumps(setup._asdict())]
    environment = {**os.environ, "ATTACKED_AT": addresses.ATTACKER}
    with subprocess.Popen(ask, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdin is not None
        asking.stdout.readline()  # it is connected
        with subprocess.Popen(by_hand, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as attacker:
            time.sleep(LEAD_SECONDS)
            asking.stdin.write("go\n")
            asking.stdin.flush()
            told: dict[str, dict[str, list[float]]] = json.loads(asking.stdout.readline())
            left = [gone for gone in map(str, server.events("broker_removed")) if honest.PREFIX in gone]
            said, _ = attacker.communicate(timeout=END_SECONDS)
        asking.communicate(timeout=END_SECONDS)
    return told, left, said.partition(" ")[0]
