"""The faults, each by its name, and schedules of them: the seed decides which come when, and whom they meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.faults.fleet import BROKERS, SERVERS, Fleet
from tests.faults.network import Network

CLIENTS = ("client-1", "client-2")
WATCHERS = {server: f"watcher of {server}" for server in SERVERS}
"""Raw watchers, each of one name server."""
WAYS = (
    *((broker.name, server) for broker in BROKERS for server in SERVERS),
    *((client, server) for client in CLIENTS for server in SERVERS),
    *((watcher, server) for server, watcher in WATCHERS.items()),
)
"""Clients and servers."""
MASTERS = tuple(broker for broker in BROKERS if broker.broker_id == 0)


@dataclass(frozen=True)
class World:
    """What faults happen to."""

    fleet: Fleet
    network: Network
    spared: frozenset[str] = frozenset()
    """Processes that are never ended, such as one whose memory is watched for an hour."""

    def may_end(self, names: Sequence[str]) -> list[str]:
        """Those that may be ended."""
        return [name for name in names if name not in self.spared]


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    name: str
    seconds: float
    """How long it lasts."""
    seed: str
    """Decides whom it meets."""


@dataclass(frozen=True)
class Round:
    """Faults that come together, and how long the fleet has afterwards."""

    faults: tuple[Fault, ...]
    rest_seconds: float


Kind = Callable[[World, random.Random], AbstractContextManager[None]]

KINDS: dict[str, Kind] = {}
"""By name."""


def _fault(begin: Callable[[World, random.Random], Iterator[None]]) -> Kind:
    kind = contextmanager(begin)
    KINDS[begin.__name__.replace("_", "-").strip("-")] = kind
    return kind


def _restart(world: World, name: str) -> None:
    broker = next((broker for broker in BROKERS if broker.name == name), None)
    if broker is not None:
        world.fleet.start_agent(broker)
    elif name in SERVERS:
        world.fleet.start_server(name)
    else:
        world.fleet.restart_client(name)


def _a_way(rng: random.Random) -> tuple[str, str]:
    return rng.choice(WAYS)


# Processes


@_fault
def kill_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(world.may_end(SERVERS))
    world.fleet.kill(name)
    yield
    _restart(world, name)


@_fault
def end_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(world.may_end(SERVERS))
    world.fleet.end(name)
    yield
    _restart(world, name)


@_fault
def stop_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(SERVERS)
    world.fleet.stop(name)
    yield
    world.fleet.go_on(name)


@_fault
def kill_agent(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(BROKERS).name
    world.fleet.kill(name)
    yield
    _restart(world, name)


@_fault
def end_agent(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(BROKERS).name
    world.fleet.end(name)
    yield
    _restart(world, name)


@_fault
def stop_agent(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(BROKERS).name
    world.fleet.stop(name)
    yield
    world.fleet.go_on(name)


@_fault
def stop_all_agents(world: World, rng: random.Random) -> Iterator[None]:
    del rng
    for broker in BROKERS:
        world.fleet.stop(broker.name)
    yield
    for broker in BROKERS:
        world.fleet.go_on(broker.name)


@_fault
def kill_client(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(CLIENTS)
    world.fleet.kill(name)
    yield
    _restart(world, name)


@_fault
def stop_client(world: World, rng: random.Random) -> Iterator[None]:
    name = rng.choice(CLIENTS)
    world.fleet.stop(name)
    yield
    world.fleet.go_on(name)


@_fault
def stop_everything(world: World, rng: random.Random) -> Iterator[None]:
    """All processes of the fleet, as when a machine is suspended."""
    names = [*SERVERS, *(broker.name for broker in BROKERS), *CLIENTS]
    rng.shuffle(names)
    for name in names:
        world.fleet.stop(name)
    yield
    rng.shuffle(names)
    for name in names:
        world.fleet.go_on(name)


@_fault
def roll_everything(world: World, rng: random.Random) -> Iterator[None]:
    """Each process is ended and started again, one after the other."""
    names = world.may_end([*SERVERS, *(broker.name for broker in BROKERS)])
    rng.shuffle(names)
    for name in names:
        world.fleet.end(name)
        _restart(world, name)
    yield


# The network


@_fault
def cut(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(rng)
    world.network.cut(*way, up=True, down=True)
    yield
    world.network.heal(*way)


@_fault
def cut_one_way(world: World, rng: random.Random) -> Iterator[None]:
    way, up = _a_way(rng), rng.random() < 0.5
    world.network.cut(*way, up=up, down=not up)
    yield
    world.network.heal(*way)


@_fault
def cut_off_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    """One name server from everybody."""
    server = rng.choice(SERVERS)
    ends = [client for client, its_server in WAYS if its_server == server]
    for end in ends:
        world.network.cut(end, server, up=True, down=True)
    yield
    for end in ends:
        world.network.heal(end, server)


@_fault
def cut_off_agent(world: World, rng: random.Random) -> Iterator[None]:
    """One agent from all name servers."""
    name = rng.choice(BROKERS).name
    for server in SERVERS:
        world.network.cut(name, server, up=True, down=True)
    yield
    for server in SERVERS:
        world.network.heal(name, server)


@_fault
def restart_agent_behind_a_cut(world: World, rng: random.Random) -> Iterator[None]:
    """What the old process had sent and the end of its connection arrive together with what the new one sends."""
    broker, server = rng.choice(MASTERS), rng.choice(SERVERS)
    world.network.cut(broker.name, server, up=True, down=False)
    world.fleet.change_topics(broker.group)
    yield
    world.fleet.kill(broker.name)
    _restart(world, broker.name)
    world.network.heal(broker.name, server)


def _on_some_ways(
    world: World, rng: random.Random, *, delay_seconds: float, jitter: float, loss: float
) -> list[tuple[str, str]]:
    ways = rng.sample(WAYS, 4)
    for way in ways:
        world.network.disturb(*way, delay_seconds=delay_seconds, jitter_seconds=jitter, loss=loss)
    return ways


@_fault
def slow(world: World, rng: random.Random) -> Iterator[None]:
    """75 ms, 50 more or less, each way."""
    ways = _on_some_ways(world, rng, delay_seconds=0.075, jitter=0.05, loss=0.0)
    yield
    for way in ways:
        world.network.heal(*way)


@_fault
def lossy(world: World, rng: random.Random) -> Iterator[None]:
    """Every other packet is lost."""
    ways = _on_some_ways(world, rng, delay_seconds=0.0, jitter=0.0, loss=0.5)
    yield
    for way in ways:
        world.network.heal(*way)


@_fault
def reset(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(rng)
    world.network.reset(*way)
    yield
    world.network.heal(*way)


@_fault
def half_open(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(rng)
    world.network.half_open(*way, server_knows=rng.random() < 0.5)
    yield
    world.network.heal(*way)


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
