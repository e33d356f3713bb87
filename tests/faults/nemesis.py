"""The faults, each by its name, whom they meet, and schedules of them: the seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.faults.fleet.fleet import JAVA, SERVERS, Fleet
from tests.faults.network import Delay, Network, lossy, narrow, slow

Way = tuple[str, str]
"""A client and a server."""
CLIENTS = ("client-1", "client-2")
WATCHERS = {server: f"watcher of {server}" for server in SERVERS}
"""Raw watchers, each of one name server."""
WAYS = (
    *((client, server) for client in CLIENTS for server in SERVERS),
    *((WATCHERS[server], server) for server in SERVERS),
)
"""Clients and servers, but for brokers."""


@dataclass(frozen=True)
class World:
    """What faults happen to."""

    fleet: Fleet
    network: Network

    taken: set[str] = field(default_factory=set)
    """Processes that a fault of the round has met already: another one finds them as nobody expects them."""

    def named(self, which: str) -> tuple[str, ...]:
        """The processes of a kind. Brokers that speak RocketMQ's own protocol are among the agents."""
        agents = tuple(broker.name for broker in self.fleet.brokers)
        site = (*SERVERS, *agents)
        return {
            "servers": SERVERS,
            "clients": CLIENTS,
            "agents": agents,
            "rocketmq": tuple(name for name in agents if name in JAVA),
            "site": site,
            "everything": (*site, *CLIENTS),
        }[which]

    @property
    def ways(self) -> tuple[Way, ...]:
        """Clients and servers of this fleet."""
        return (*((name, server) for name in self.named("agents") for server in SERVERS), *WAYS)

    def take(self, rng: random.Random, names: Sequence[str], most: int | None = None) -> list[str]:
        """Processes that a fault may have until the end of the round, in any order: all, or at most so many."""
        free = [name for name in names if name not in self.taken]
        rng.shuffle(free)
        self.taken.update(free[:most])
        return free[:most]


Kind = Callable[[World, random.Random], AbstractContextManager[None]]


def _restart(world: World, name: str) -> None:
    broker = next((broker for broker in world.fleet.brokers if broker.name == name), None)
    if broker is not None:
        world.fleet.start_broker(broker)
    elif name in SERVERS:
        world.fleet.start_server(name)
    else:
        world.fleet.start_client(name)


# Processes


def _processes(
    begin: Callable[[Fleet, str], object], end: Callable[[World, str], None], names: str, *, at_once: bool = False
) -> Kind:
    """Something begins with one process of a kind, or all of them, and ends with each."""

    @contextmanager
    def happen(world: World, rng: random.Random) -> Iterator[None]:
        met = world.take(rng, world.named(names), None if at_once else 1)
        for name in met:
            begin(world.fleet, name)
        yield
        for name in met:
            end(world, name)

    return happen


_killed = partial(_processes, Fleet.kill, _restart)
_ended = partial(_processes, Fleet.end, _restart)
_stopped = partial(_processes, Fleet.stop, lambda world, name: world.fleet.go_on(name))


@contextmanager
def _rolled(world: World, rng: random.Random) -> Iterator[None]:
    """Each name server and agent is ended and started again, one after the other."""
    for name in world.take(rng, world.named("site")):
        world.fleet.end(name)
        _restart(world, name)
    yield


# The network


def _ways(
    begin: Callable[[Network, Way, random.Random], None], ways: Callable[[World, random.Random], list[Way]]
) -> Kind:
    """Something happens to some ways until they heal."""

    @contextmanager
    def happen(world: World, rng: random.Random) -> Iterator[None]:
        chosen = ways(world, rng)
        for way in chosen:
            begin(world.network, way, rng)
        yield
        for way in chosen:
            world.network.heal(*way)

    return happen


def _cut(*sides: tuple[bool, bool]) -> Callable[[Network, Way, random.Random], None]:
    """The way is cut up, down or both, as one of these says."""

    def begin(network: Network, way: Way, rng: random.Random) -> None:
        up, down = rng.choice(sides)
        network.cut(*way, up=up, down=down)

    return begin


def _half_opened(network: Network, way: Way, rng: random.Random) -> None:
    network.half_open(*way, server_knows=rng.random() < 0.5)


def _disturbed(delay: Delay) -> Kind:
    """Four ways are bad."""
    return _ways(lambda network, way, _: network.disturb(*way, delay), lambda world, rng: rng.sample(world.ways, 4))


def _any(world: World, rng: random.Random) -> list[Way]:
    return [rng.choice(world.ways)]


def _of_a_server(world: World, rng: random.Random) -> list[Way]:
    server = rng.choice(SERVERS)
    return [way for way in world.ways if way[1] == server]


def _of_an_agent(world: World, rng: random.Random) -> list[Way]:
    name = rng.choice(world.named("agents"))
    return [(name, server) for server in SERVERS]


def _of_rocketmq(world: World, rng: random.Random) -> list[Way]:
    return [(rng.choice(world.named("rocketmq")), rng.choice(SERVERS))]


@contextmanager
def _restarted_behind_a_cut(world: World, rng: random.Random) -> Iterator[None]:
    """What the old process had sent and the end of its connection arrive together with what the new one sends."""
    server = rng.choice(SERVERS)
    names = world.take(rng, [name for name in world.named("agents") if name.endswith("-0")], 1)
    for name in names:
        world.network.cut(name, server, down=False)
        world.fleet.change_topics(name.removesuffix("-0"))
    yield
    for name in names:
        world.fleet.kill(name)
        _restart(world, name)
        world.network.heal(name, server)


UP, DOWN, BOTH = (True, False), (False, True), (True, True)
KINDS: dict[str, Kind] = {
    "kill-namesrv": _killed("servers"),
    "end-namesrv": _ended("servers"),
    "stop-namesrv": _stopped("servers"),
    "kill-agent": _killed("agents"),
    "end-agent": _ended("agents"),
    "stop-agent": _stopped("agents"),
    "stop-all-agents": _stopped("agents", at_once=True),
    "kill-client": _killed("clients"),
    "stop-client": _stopped("clients"),
    # As when the power of a site goes and comes back.
    "kill-everything": _killed("site", at_once=True),
    # As when a machine is suspended.
    "stop-everything": _stopped("everything", at_once=True),
    "roll-everything": _rolled,
    "cut": _ways(_cut(BOTH), _any),
    "cut-one-way": _ways(_cut(UP, DOWN), _any),
    "cut-off-namesrv": _ways(_cut(BOTH), _of_a_server),
    "cut-off-agent": _ways(_cut(BOTH), _of_an_agent),
    "restart-agent-behind-a-cut": _restarted_behind_a_cut,
    "slow": _disturbed(slow),
    "narrow": _disturbed(narrow),
    "lossy": _disturbed(lossy),
    "reset": _ways(lambda network, way, _: network.reset(*way), _any),
    "half-open": _ways(_half_opened, _any),
    "kill-rocketmq": _killed("rocketmq"),
    "end-rocketmq": _ended("rocketmq"),
    "stop-rocketmq": _stopped("rocketmq"),
    "cut-rocketmq": _ways(_cut(BOTH, UP, DOWN), _of_rocketmq),
}
"""By name."""
OF_ROCKETMQ = frozenset({"kill-rocketmq", "end-rocketmq", "stop-rocketmq", "cut-rocketmq"})
"""Kinds that need RocketMQ's own programs in the fleet."""


class Fault(NamedTuple):
    """One fault of a schedule."""

    name: str
    seconds: float
    """How long it lasts."""
    seed: str
    """Decides whom it meets."""


class Round(NamedTuple):
    """Faults that come together, and how long the fleet has afterwards."""

    faults: tuple[Fault, ...]
    rest_seconds: float


def schedule(
    seed: int, names: Sequence[str], rounds: int, seconds: Sequence[float], rest: Sequence[float]
) -> list[Round]:
    """Rounds of one fault, or sometimes two at once. Each kind comes before any comes again.

    Args:
        seed: Decides everything.
        names: The kinds.
        rounds: How many rounds.
        seconds: How long faults last: one of these.
        rest: How long the fleet has afterwards: one of these.
    """
    rng = random.Random(seed)
    bag: list[str] = []
    planned = []
    for number in range(rounds):
        faults = []
        for place in range(1 if rng.random() < 0.7 else 2):
            bag = bag or rng.sample(list(names), len(names))
            faults.append(Fault(bag.pop(), rng.choice(seconds), f"{seed}/{number}/{place}"))
        planned.append(Round(tuple(faults), rng.choice(rest)))
    return planned
