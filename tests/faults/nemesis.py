"""The faults, each by its name, and whom they meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tests.faults.fleet.fleet import JAVA, SERVERS, Fleet
from tests.faults.fleet.pipeline import PIPELINE, Pipeline, kill_after_a_batch
from tests.faults.network.network import Network
from tests.faults.network.proxy import Disturbance

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
    pipeline: Pipeline | None = None
    """In fleets that have one."""

    taken: set[str] = field(default_factory=set)
    """Processes that a fault of the round has met already: another one finds them as nobody expects them."""

    @property
    def agents(self) -> tuple[str, ...]:
        """And brokers that speak RocketMQ's own protocol, each of which stands for its own agent."""
        return tuple(broker.name for broker in self.fleet.brokers)

    @property
    def masters(self) -> tuple[str, ...]:
        """Those of masters."""
        return tuple(broker.name for broker in self.fleet.brokers if broker.broker_id == 0)

    @property
    def rocketmq(self) -> tuple[str, ...]:
        """Brokers that are RocketMQ's own programs."""
        return tuple(name for name in self.agents if name in JAVA)

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """Clients and servers of this fleet."""
        ways = (*((name, server) for name in self.agents for server in SERVERS), *WAYS)
        if self.pipeline is not None:
            ways += tuple((PIPELINE, server) for server in SERVERS)
        return ways

    def take(self, names: Sequence[str]) -> list[str]:
        """Those of the processes that a fault may have, from now until the end of the round."""
        free = [name for name in names if name not in self.taken]
        self.taken.update(free)
        return free

    def take_one(self, rng: random.Random, names: Sequence[str]) -> list[str]:
        """Any one of them; none if all are taken."""
        shuffled = rng.sample(list(names), len(names))
        free = next((name for name in shuffled if name not in self.taken), None)
        return [] if free is None else self.take([free])


Kind = Callable[[World, random.Random], AbstractContextManager[None]]

KINDS: dict[str, Kind] = {}
"""By name."""


def _fault(begin: Callable[[World, random.Random], Iterator[None]]) -> Kind:
    kind = contextmanager(begin)
    KINDS[begin.__name__.replace("_", "-").strip("-")] = kind
    return kind


def _restart(world: World, name: str) -> None:
    broker = next((broker for broker in world.fleet.brokers if broker.name == name), None)
    if broker is not None:
        world.fleet.start_broker(broker)
    elif name in SERVERS:
        world.fleet.start_server(name)
    else:
        world.fleet.restart_client(name)


def _a_way(world: World, rng: random.Random) -> tuple[str, str]:
    return rng.choice(world.ways)


# Processes


def _killed(world: World, names: Sequence[str]) -> Iterator[None]:
    for name in names:
        world.fleet.kill(name)
    yield
    for name in names:
        _restart(world, name)


def _ended(world: World, names: Sequence[str]) -> Iterator[None]:
    for name in names:
        world.fleet.end(name)
    yield
    for name in names:
        _restart(world, name)


def _stopped(world: World, names: Sequence[str]) -> Iterator[None]:
    for name in names:
        world.fleet.stop(name)
    yield
    for name in names:
        world.fleet.go_on(name)


@_fault
def kill_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    return _killed(world, world.take_one(rng, SERVERS))


@_fault
def end_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    return _ended(world, world.take_one(rng, SERVERS))


@_fault
def stop_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    return _stopped(world, world.take_one(rng, SERVERS))


@_fault
def kill_agent(world: World, rng: random.Random) -> Iterator[None]:
    return _killed(world, world.take_one(rng, world.agents))


@_fault
def end_agent(world: World, rng: random.Random) -> Iterator[None]:
    return _ended(world, world.take_one(rng, world.agents))


@_fault
def stop_agent(world: World, rng: random.Random) -> Iterator[None]:
    return _stopped(world, world.take_one(rng, world.agents))


@_fault
def stop_all_agents(world: World, rng: random.Random) -> Iterator[None]:
    del rng
    return _stopped(world, world.take(world.agents))


@_fault
def kill_client(world: World, rng: random.Random) -> Iterator[None]:
    return _killed(world, world.take_one(rng, CLIENTS))


@_fault
def stop_client(world: World, rng: random.Random) -> Iterator[None]:
    return _stopped(world, world.take_one(rng, CLIENTS))


@_fault
def kill_everything(world: World, rng: random.Random) -> Iterator[None]:
    """All name servers and agents at once, as when the power of a site goes and comes back."""
    del rng
    return _killed(world, world.take([*SERVERS, *world.agents]))


@_fault
def stop_everything(world: World, rng: random.Random) -> Iterator[None]:
    """All processes of the fleet, as when a machine is suspended."""
    names = world.take([*SERVERS, *world.agents, *CLIENTS])
    rng.shuffle(names)
    return _stopped(world, names)


@_fault
def roll_everything(world: World, rng: random.Random) -> Iterator[None]:
    """Each name server and agent is ended and started again, one after the other."""
    names = world.take([*SERVERS, *world.agents])
    rng.shuffle(names)
    for name in names:
        world.fleet.end(name)
        _restart(world, name)
    yield


# The network


@_fault
def cut(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(world, rng)
    world.network.cut(*way, up=True, down=True)
    yield
    world.network.heal(*way)


@_fault
def cut_one_way(world: World, rng: random.Random) -> Iterator[None]:
    way, up = _a_way(world, rng), rng.random() < 0.5
    world.network.cut(*way, up=up, down=not up)
    yield
    world.network.heal(*way)


@_fault
def cut_off_namesrv(world: World, rng: random.Random) -> Iterator[None]:
    """One name server from everybody."""
    server = rng.choice(SERVERS)
    ends = [client for client, its_server in world.ways if its_server == server]
    for end in ends:
        world.network.cut(end, server, up=True, down=True)
    yield
    for end in ends:
        world.network.heal(end, server)


@_fault
def cut_off_agent(world: World, rng: random.Random) -> Iterator[None]:
    """One agent from all name servers."""
    name = rng.choice(world.agents)
    for server in SERVERS:
        world.network.cut(name, server, up=True, down=True)
    yield
    for server in SERVERS:
        world.network.heal(name, server)


@_fault
def restart_agent_behind_a_cut(world: World, rng: random.Random) -> Iterator[None]:
    """What the old process had sent and the end of its connection arrive together with what the new one sends."""
    server = rng.choice(SERVERS)
    names = world.take_one(rng, world.masters)
    for name in names:
        world.network.cut(name, server, up=True, down=False)
        world.fleet.change_topics(name.removesuffix("-0"))
    yield
    for name in names:
        world.fleet.kill(name)
        _restart(world, name)
        world.network.heal(name, server)


def _on_some_ways(world: World, rng: random.Random, disturbance: Disturbance) -> Iterator[None]:
    ways = rng.sample(world.ways, 4)
    for way in ways:
        world.network.disturb(*way, disturbance)
    yield
    for way in ways:
        world.network.heal(*way)


@_fault
def slow(world: World, rng: random.Random) -> Iterator[None]:
    """75 ms, 50 more or less, each way."""
    return _on_some_ways(world, rng, Disturbance(delay_seconds=0.075, jitter_seconds=0.05))


@_fault
def narrow(world: World, rng: random.Random) -> Iterator[None]:
    """A megabit a second."""
    return _on_some_ways(world, rng, Disturbance(bits_per_second=1_000_000))


@_fault
def lossy(world: World, rng: random.Random) -> Iterator[None]:
    """Every other packet is lost."""
    return _on_some_ways(world, rng, Disturbance(loss=0.5))


@_fault
def reset(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(world, rng)
    world.network.reset(*way)
    yield
    world.network.heal(*way)


@_fault
def half_open(world: World, rng: random.Random) -> Iterator[None]:
    way = _a_way(world, rng)
    world.network.half_open(*way, server_knows=rng.random() < 0.5)
    yield
    world.network.heal(*way)


@_fault
def kill_pipeline(world: World, rng: random.Random) -> Iterator[None]:
    """With its whole process group, after a batch or while Spark starts."""
    if world.pipeline is not None:
        kill_after_a_batch(world.pipeline, rng)
    yield
    if world.pipeline is not None:
        world.pipeline.start()


@_fault
def stop_pipeline(world: World, rng: random.Random) -> Iterator[None]:
    """With its whole process group, wherever it is."""
    del rng
    if world.pipeline is not None:
        world.pipeline.stop()
    yield
    if world.pipeline is not None:
        world.pipeline.go_on()


# RocketMQ's own programs, in fleets that have them


@_fault
def kill_rocketmq(world: World, rng: random.Random) -> Iterator[None]:
    return _killed(world, world.take_one(rng, world.rocketmq))


@_fault
def end_rocketmq(world: World, rng: random.Random) -> Iterator[None]:
    return _ended(world, world.take_one(rng, world.rocketmq))


@_fault
def stop_rocketmq(world: World, rng: random.Random) -> Iterator[None]:
    return _stopped(world, world.take_one(rng, world.rocketmq))


@_fault
def cut_rocketmq(world: World, rng: random.Random) -> Iterator[None]:
    """One of them from a name server, both ways or one."""
    way = rng.choice(world.rocketmq), rng.choice(SERVERS)
    up, down = rng.choice([(True, True), (True, False), (False, True)])
    world.network.cut(*way, up=up, down=down)
    yield
    world.network.heal(*way)


OF_A_PIPELINE = frozenset({"kill-pipeline", "stop-pipeline"})
"""Kinds that need the pipeline beside the fleet."""
OF_ROCKETMQ = frozenset({"kill-rocketmq", "end-rocketmq", "stop-rocketmq", "cut-rocketmq"})
"""Kinds that need RocketMQ's own programs in the fleet."""
