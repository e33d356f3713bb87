"""Hosts of their own for the programs of a run: network namespaces, a bridge between them, and lost packets.

Each name server, agent and client gets an address; whoever runs them has to be in the namespace ``OBSERVER``. Nothing
has a route out. Needs root, iproute2 and nftables. Here the kernel's TCP meets real loss; what only a proxy can do
(slow and half-open connections, resets) is not to be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

from groundwork.endpoints import Endpoint
from tests.faults.history import History
from tests.faults.network.network import Place
from tests.faults.network.proxy import Disturbance

OBSERVER = "observer"
"""Whoever has no host of its own is there."""
ENTERED = "TESTS_FAULTS_HOSTS"
"""Variable with what the namespaces' names begin with, for the process inside."""
RULES = """
table bridge faults {{
  set cut {{ type ipv4_addr . ipv4_addr; }}
  set lossy {{ type ipv4_addr . ipv4_addr; }}
  chain forwarded {{
    type filter hook forward priority 0; policy accept;
    ip saddr . ip daddr @cut drop
    ip saddr . ip daddr @lossy numgen random mod 100 < {percent} drop
  }}
}}
"""
LOST_PERCENT = 30
"""Of the packets of a lossy way: with one in two lost, TCP itself gives way to the pings' time."""
COMMAND_SECONDS = 20.0


class CannotMakeHosts(RuntimeError):
    """This machine has no network namespaces for us; says what is missing."""


class Hosts:
    """The namespaces of a run, made and removed again by whoever is outside."""

    def __init__(self, names: Sequence[str]) -> None:
        """Takes the names of the programs. Nothing is made yet."""
        self.prefix = f"faults{os.getpid()}"
        self._names = (*names, OBSERVER)

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (_switch(self.prefix), *(_host(self.prefix, name) for name in self._names)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def run_inside(self, command: Sequence[str]) -> int:
        """Runs a command as the observer; returns its exit code."""
        inside = ["ip", "netns", "exec", _host(self.prefix, OBSERVER), *command]
        environment = {**os.environ, ENTERED: f"{self.prefix} {' '.join(self._names)}"}
        return subprocess.run(inside, env=environment, check=False).returncode

    def _make(self) -> None:
        switch = _switch(self.prefix)
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(self._names):
            host, port = _host(self.prefix, name), f"p{number}"
            _run("ip", "netns", "add", host)
            _run("ip", "-n", host, "link", "set", "lo", "up")
            _run("ip", "link", "add", "e0", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", host, "addr", "add", f"{_address(number)}/24", "dev", "e0")
            _run("ip", "-n", host, "link", "set", "e0", "up")
        _nft(self.prefix, RULES.format(percent=LOST_PERCENT))


class NamespaceNetwork:
    """The network of hosts that have been made. For the process inside."""

    def __init__(self, entered: str, history: History) -> None:
        """Takes what the variable ``ENTERED`` says."""
        self._prefix, *names = entered.split()
        self._numbers = {name: number for number, name in enumerate(names)}
        self._history = history
        self._dropped: dict[str, set[tuple[str, str]]] = {"cut": set(), "lossy": set()}

    def place(self, name: str) -> Place:
        """On a host of its own."""
        prefix = ("ip", "netns", "exec", _host(self._prefix, name))
        return Place(self._address_of(name), prefix, ("--allow-insecure",))

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """The server itself: what happens on the way happens to packets."""
        del client, server
        return endpoint

    def cut(self, client: str, server: str, *, up: bool, down: bool) -> None:
        """Drops every packet."""
        self._note(client, server, "cut", up=up, down=down)
        there, back = self._pairs(client, server)
        self._drop("cut", {there} if up else set(), {back} if down else set())

    def disturb(self, client: str, server: str, disturbance: Disturbance) -> None:
        """Drops some packets, whatever the loss that is asked for. Raises ValueError for anything else."""
        if disturbance != Disturbance(loss=disturbance.loss):
            raise ValueError(f"between network namespaces there is nothing but loss, not {disturbance}")
        self._note(client, server, "disturbed", by=str(disturbance))
        self._drop("lossy", set(self._pairs(client, server)))

    def reset(self, client: str, server: str) -> None:
        """Raises ValueError: there are no resets here."""
        raise ValueError(f"no reset between {client} and {server} in network namespaces")

    def half_open(self, client: str, server: str, *, server_knows: bool) -> None:
        """Raises ValueError: there are no half-open connections here."""
        raise ValueError(
            f"no half-open connection between {client} and {server}, {server_knows=}, in network namespaces"
        )

    def heal(self, client: str, server: str) -> None:
        """Lets every packet pass."""
        for pairs in self._dropped.values():
            pairs.difference_update(self._pairs(client, server))
        self._drop("cut")
        self._drop("lossy")
        self._note(client, server, "healed")

    def _drop(self, kind: str, *more: set[tuple[str, str]]) -> None:
        self._dropped[kind].update(*more)
        elements = ", ".join(f"{source} . {target}" for source, target in sorted(self._dropped[kind]))
        added = f"add element bridge faults {kind} {{ {elements} }}\n" if elements else ""
        _nft(self._prefix, f"flush set bridge faults {kind}\n{added}")

    def _pairs(self, client: str, server: str) -> tuple[tuple[str, str], tuple[str, str]]:
        ends = self._address_of(client), self._address_of(server)
        return ends, (ends[1], ends[0])

    def _address_of(self, name: str) -> str:
        return _address(self._numbers.get(name, self._numbers[OBSERVER]))

    def _note(self, client: str, server: str, event: str, **details: object) -> None:
        self._history.add("link", client=client, server=server, event=event, **details)


def why_not() -> str:
    """What is missing on this machine; empty if hosts can be made."""
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Hosts(()):
            return ""
    except CannotMakeHosts as problem:
        return str(problem)


def _switch(prefix: str) -> str:
    return f"{prefix}-switch"


def _host(prefix: str, name: str) -> str:
    return f"{prefix}-{name}"


def _address(number: int) -> str:
    return f"10.77.2.{number + 11}"


def _nft(prefix: str, rules: str) -> None:
    _run("ip", "netns", "exec", _switch(prefix), "nft", "-f", "-", text=rules)


def _run(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=COMMAND_SECONDS)
    if done.returncode != 0:
        raise CannotMakeHosts(f"{' '.join(command)}: {done.stderr.strip()}")
