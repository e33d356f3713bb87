"""What a client saw while name servers were killed and stopped and brokers came and went at random, held to promises.

A run records every change that the client told. On failure the seed and the recorded history are in the message.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from namesrv_api.v1 import registration_service_pb2

from route_client import ClientSettings, KnownRoute, RouteChange, RouteClient, Stale, TopicRoute
from route_client.cache import all_really_went
from route_client.route import from_wire
from tests.support.programs.processes import Client, NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration

pytestmark = pytest.mark.slow

TOPICS = ("topic-a", "topic-b", "topic-c")
BROKERS = {"broker-a": "127.0.0.1:10911", "broker-b": "127.0.0.1:10921", "broker-c": "127.0.0.1:10931"}
HOLD_SECONDS = 2.0
STEPS = 40
QUICK_PINGS = ("--keepalive-time-millis", "1000")


@dataclass
class Told:
    """A change, and when the client told it."""

    at: float
    change: RouteChange

    def __str__(self) -> str:
        after, groups = self.change.after, self.change.new_route.broker_datas if self.change.new_route else ()
        reasons = [removal.reason_name for removal in self.change.removals]
        origin = f"{after.origin.epoch}@{after.revision}" if after.origin else "-"
        names = [f"{group.broker_name}{dict(group.broker_addrs)}" for group in groups]
        return f"{self.at:.3f} {self.change.topic} {origin} {names} {after.stale} {reasons}"


@dataclass
class History:
    """Everything a client told about its topics."""

    told: list[Told] = field(default_factory=list)

    def add(self, change: RouteChange) -> None:
        self.told.append(Told(time.monotonic(), change))

    def of(self, topic: str) -> list[Told]:
        return [told for told in self.told if told.change.topic == topic]


# The promises


def is_filtered(history: History) -> None:
    assert {told.change.topic for told in history.told} <= set(TOPICS), "only kept topics are told"


def is_ordered(history: History) -> None:
    for topic in TOPICS:
        last: KnownRoute | None = None
        for told in history.of(topic):
            after = told.change.after
            if last is not None and last.origin == after.origin:
                assert after.revision >= last.revision, f"revisions went back: {told}"
            last = after


def is_unique_and_gapless(history: History) -> None:
    for topic in TOPICS:
        seen: tuple[TopicRoute | None, Stale | None] = (None, None)
        for told in history.of(topic):
            before, after = told.change.before, told.change.after
            assert (before.route if before else None, before.stale if before else None) == seen, f"a gap: {told}"
            assert (after.route, after.stale) != seen, f"told twice: {told}"
            seen = after.route, after.stale


def is_never_lost_without_a_reason(history: History) -> None:
    for topic in TOPICS:
        for told in history.of(topic):
            old, new = told.change.old_route, told.change.new_route
            if old is None or not old.has_brokers or (new is not None and new.has_brokers):
                continue
            before = told.change.before
            was_held = before is not None and before.stale is Stale.HELD
            assert was_held or all_really_went(old, told.change.removals), f"lost: {told}"


PROMISES = (is_filtered, is_ordered, is_unique_and_gapless, is_never_lost_without_a_reason)


# The faults


class Fleet:
    """Two name servers and some brokers, which register with each name server that runs, as agents do."""

    def __init__(self, rng: random.Random, stack: ExitStack) -> None:
        self._rng = rng
        self._stack = stack
        self.servers = [stack.enter_context(NamesrvProcess(*QUICK_PINGS)) for _ in range(2)]
        self._clients = [stack.enter_context(server.connect()) for server in self.servers]
        self._channels: dict[tuple[int, str], OpenedChannel] = {}
        self._stopped: set[int] = set()
        self._topics: dict[str, set[str]] = {}
        self._versions = 0
        self.log: list[str] = []
        for name in BROKERS:
            self.register(name, set(TOPICS))

    def client(self, number: int) -> Client:
        return self._clients[number]

    def step(self) -> None:
        """Does something to a broker or a name server."""
        choices: list[tuple[Callable[[], None], int]] = [
            (self._change_topics, 8),
            (self._unregister, 4),
            (self._cut_channel, 4),
            (self._kill_and_restart, 1),
            (self._stop_or_go_on, 2),
        ]
        actions, weights = zip(*choices, strict=True)
        self._rng.choices(actions, weights)[0]()

    def settle(self) -> None:
        """Ends all faults: every name server runs, and every broker is registered with each."""
        for number in list(self._stopped):
            self._go_on(number)
        for name in BROKERS:
            self.register(name, self._topics.get(name) or {TOPICS[0]})

    def register(self, name: str, topics: set[str]) -> None:
        self._topics[name] = topics
        self._versions += 1
        self.log.append(f"register {name} {sorted(topics)}")
        for number in self._running():
            self._register_with(number, name)

    def _register_with(self, number: int, name: str) -> None:
        client = self._clients[number]
        self._channels[number, name] = channel = client.open_channel()
        broker = identity(addr=BROKERS[name], name=name)
        request = registration(sorted(self._topics[name]), broker, self._versions, channel.id)
        client.registration.RegisterBroker(request, timeout=20)

    def has_told(self, client: RouteClient) -> bool:
        """Whether the client is as the name server that it watches, apart from what it holds back."""
        status = client.status()
        number = next((n for n in self._running() if self.servers[n].endpoint == status.endpoint), None)
        if status.mode != "watch" or number is None:
            return False
        truth, seen = truth_of(self._clients[number]), seen_by(client)
        return all(truth[topic] == seen[topic] or seen[topic][1] is Stale.HELD for topic in TOPICS)

    def _change_topics(self) -> None:
        name = self._rng.choice(list(BROKERS))
        self.register(name, set(self._rng.sample(TOPICS, self._rng.randint(1, len(TOPICS)))))

    def _unregister(self) -> None:
        name = self._rng.choice(list(BROKERS))
        self.log.append(f"unregister {name}")
        request = registration_service_pb2.UnregisterBrokerRequest(broker=identity(addr=BROKERS[name], name=name))
        for number in self._running():
            self._clients[number].registration.UnregisterBroker(request, timeout=20)

    def _cut_channel(self) -> None:
        name = self._rng.choice(list(BROKERS))
        self.log.append(f"cut {name}")
        for number in self._running():
            if (channel := self._channels.pop((number, name), None)) is not None:
                channel.close()

    def _kill_and_restart(self) -> None:
        number = self._rng.randrange(2)
        if number in self._stopped:
            return
        self.log.append(f"kill {number}")
        self.servers[number].kill()
        server = NamesrvProcess(*QUICK_PINGS, port=self.servers[number].endpoint.port)
        self.servers[number] = self._stack.enter_context(server)
        self._clients[number] = self._stack.enter_context(server.connect())
        for name in BROKERS:
            if self._rng.random() < 0.7:  # the others take their time
                self._register_with(number, name)

    def _stop_or_go_on(self) -> None:
        number = self._rng.randrange(2)
        if number in self._stopped:
            self._go_on(number)
        elif not self._stopped:
            self.log.append(f"stop {number}")
            self._stopped.add(number)
            self.servers[number].signal(signal.SIGSTOP)

    def _go_on(self, number: int) -> None:
        self.log.append(f"go on {number}")
        self._stopped.discard(number)
        self.servers[number].signal(signal.SIGCONT)

    def _running(self) -> Iterator[int]:
        return (number for number in range(2) if number not in self._stopped)


def seen_by(client: RouteClient) -> dict[str, tuple[TopicRoute | None, Stale | None]]:
    known = {topic: client.cached(topic) for topic in TOPICS}
    return {topic: (told.route, told.stale) if told else (None, None) for topic, told in known.items()}


def truth_of(server: Client) -> dict[str, tuple[TopicRoute | None, Stale | None]]:
    told = {topic: server.route(topic) for topic in TOPICS}
    return {topic: (from_wire(route) if route is not None else None, None) for topic, route in told.items()}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_promises_hold_whatever_happens_to_name_servers_and_brokers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.namesrv.KEEPALIVE_SECONDS", 1)
    rng, history = random.Random(seed), History()
    settings = ClientSettings(hold_seconds=HOLD_SECONDS, timeout_seconds=2)
    with ExitStack() as stack:
        fleet = Fleet(rng, stack)
        endpoints = [str(server.endpoint) for server in fleet.servers]
        client = stack.enter_context(RouteClient(endpoints, settings, rng=rng))
        client.on_change(history.add)
        try:
            for topic in TOPICS:
                client.route(topic)
            for _ in range(STEPS):
                fleet.step()
                if rng.random() < 0.6:  # otherwise faults pile up, and the client sees few states in between
                    eventually(lambda: fleet.has_told(client))
            fleet.settle()
            used = eventually(client.status, lambda status: status.mode == "watch").endpoint
            number = [server.endpoint for server in fleet.servers].index(used)  # type: ignore[arg-type]
            truth = truth_of(fleet.client(number))
            eventually(lambda: seen_by(client), lambda seen: seen == truth)
            for promise in PROMISES:
                promise(history)
        except BaseException as failure:
            lines = [f"seed {seed}", *fleet.log, *map(str, list(history.told)), str(client.status())]
            failure.add_note("\n".join(lines))
            raise
    assert len(history.told) > len(TOPICS)
