"""Attacks a name server, and measures the lookups of a well-behaved client beside it.

``python -m tests.faults.attack.hostile --seconds 5`` prints a table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple, Protocol

import grpc

from tests.faults.attack.catalogue import ATTACKS
from tests.faults.attack.runner import NO_SCAN, ROOT, Held, register_topics
from tests.support.programs.processes import NamesrvProcess

LOOKUP_SECONDS = 10.0
"""Deadline of a lookup: one that is answered later counts as an error."""
PAUSE_SECONDS = 0.005
REST_SECONDS = 3.0
"""After an attack, before what stays is looked at."""


class Load(NamedTuple):
    """How lookups did."""

    seconds: list[float]
    errors: list[str]

    def quantile(self, number: int) -> float:
        """So many of a hundred were quicker, milliseconds."""
        return quantiles(self.seconds, n=100, method="inclusive")[number - 1] * 1000


class Looking(Protocol):
    """A client that looks up topics."""

    def route(self) -> object | None:
        """A topic's route; None if there is none. Raises RpcError, or OSError."""


def lookup_while(client: Looking, attack: subprocess.Popen[bytes] | None, seconds: float) -> Load:
    """Looks up a topic until an attack has ended, or for some seconds."""
    load = Load([], [])
    until = time.monotonic() + seconds
    while (attack.poll() is None) if attack else (time.monotonic() < until):
        began = time.perf_counter()
        try:
            route = client.route()
        except grpc.RpcError as error:
            load.errors.append(f"{error.code()} {error.details()}")
        except OSError as error:
            load.errors.append(repr(error))
        else:
            load.seconds.append(time.perf_counter() - began)
            if route is None:
                load.errors.append("the topic is gone")
        time.sleep(PAUSE_SECONDS)
    return load


def under_attack(client: Looking, port: int, attack: str, seconds: float, listener: str = "grpc") -> Load:
    """Looks up while a process of its own attacks: with one on the listener."""
    program = [sys.executable, "-m", "tests.faults.attack.catalogue", listener, attack, str(port), str(seconds)]
    with subprocess.Popen(program, cwd=ROOT) as attacker:
        try:
            load = lookup_while(client, attacker, seconds)
        finally:
            attacker.kill()
    assert attacker.returncode == 0, f"the attack {attack} failed"
    return load


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS["grpc"]], default=[])
    given = parser.parse_args(arguments)
    sys.stdout.write(
        "| attack | lookups | errors | p50 ms | p99 ms | p99 / idle | MiB before | peak | after | descriptors |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|---|\n")
    with NamesrvProcess(*NO_SCAN) as server, server.connect() as client:
        register_topics(client)
        lookup_while(client, None, 1.0)
        idle = lookup_while(client, None, given.seconds)
        for name in ("none", *(given.attacks or ATTACKS["grpc"])):
            before = Held.counting_anew(server)
            load = idle if name == "none" else under_attack(client, server.endpoint.port, name, given.seconds)
            time.sleep(REST_SECONDS * (name != "none"))
            after = Held.of(server)
            ratio = load.quantile(99) / idle.quantile(99)
            sys.stdout.write(
                f"| {name} | {len(load.seconds)} | {len(load.errors)} | {load.quantile(50):.2f} | "
                f"{load.quantile(99):.2f} | {ratio:.1f} | "
                f"{before.mebibytes} | {after.peak_mebibytes} | {after.mebibytes} | "
                f"{before.descriptors} to {after.descriptors} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
