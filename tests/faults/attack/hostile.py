"""Attacks a name server, and measures the lookups of a well-behaved client beside it.

``python -m tests.faults.attack.hostile --seconds 5`` prints a table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple, Protocol

import grpc

from tests.faults.attack.on_grpc import ATTACKS, FRAME_ATTACKS, SHARE_ATTACKS
from tests.support.programs.processes import Client, NamesrvProcess, Process
from tests.support.registrations import registration

ROOT = Path(__file__).parents[3]
TOPICS = 50
LOOKUP_SECONDS = 10.0
"""Deadline of a lookup: one that is answered later counts as an error."""
PAUSE_SECONDS = 0.005
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
"""The broker that has registered the topics sends no heartbeats."""
REST_SECONDS = 3.0
"""After an attack, before what stays is looked at."""


class Load(NamedTuple):
    """How lookups did."""

    seconds: list[float]
    errors: list[str]

    def quantile(self, number: int) -> float:
        """So many of a hundred were quicker, milliseconds."""
        return quantiles(self.seconds, n=100, method="inclusive")[number - 1] * 1000


class Held(NamedTuple):
    """What a process holds."""

    mebibytes: int
    peak_mebibytes: int
    """The most since it was asked to count anew."""
    descriptors: int

    @classmethod
    def of(cls, process: Process) -> Held:
        """What a process holds now."""
        folder = Path(f"/proc/{process.pid}")
        status = (folder / "status").read_text(encoding="ascii")
        now, peak = (int(status.partition(f"{name}:")[2].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))
        return cls(now, peak, len(list((folder / "fd").iterdir())))

    @classmethod
    def counting_anew(cls, process: Process) -> Held:
        """What a server holds now, which is its peak from now on (proc(5), clear_refs)."""
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
        return cls.of(process)


def register_topics(client: Client) -> None:
    """Gives the server something to answer with."""
    topics = ["TopicTest", *(f"topic-{number}" for number in range(TOPICS))]
    client.registration.RegisterBroker(registration(topics), timeout=LOOKUP_SECONDS)


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


def under_attack(client: Looking, port: int, attack: str, seconds: float, attacks: str = "on_grpc") -> Load:
    """Looks up while a process of its own attacks: with one of the module ``attacks``."""
    program = [sys.executable, "-m", f"tests.faults.attack.{attacks}", attack, str(port), str(seconds)]
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
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS, *FRAME_ATTACKS, *SHARE_ATTACKS], default=[])
    given = parser.parse_args(arguments)
    sys.stdout.write(
        "| attack | lookups | errors | p50 ms | p99 ms | p99 / idle | MiB before | peak | after | descriptors |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|---|\n")
    with NamesrvProcess(*NO_SCAN) as server, server.connect() as client:
        register_topics(client)
        lookup_while(client, None, 1.0)
        idle = lookup_while(client, None, given.seconds)
        for name in ("none", *(given.attacks or {**ATTACKS, **FRAME_ATTACKS})):
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
