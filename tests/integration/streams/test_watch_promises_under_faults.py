"""The seven promises of WatchTopicRoutes, checked on recorded histories of runs with random faults on real processes.

The name server and two agents are killed and stopped, connections are cut, brokers come and go. On failure the seed and
the path of the history are in the message; the seed decides which faults come in which order, not what they meet.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration, topic_config
from tests.support.routes.watch_validators import (
    Lookup,
    Route,
    WatchedStream,
    check_promises,
    held_at_bookmarks,
    last_bookmark,
)

pytestmark = pytest.mark.slow

TIMEOUT = 20.0
OF_BROKERS = ("T0", "T1", "T2", "T3")
TOPICS = (*OF_BROKERS, "TopicTest", "never")
"""What is looked up: of brokers, of agents, of nobody."""
WATCHED = ((TOPICS, ()), ((), ("",)), (("TopicTest",), ("T",)), (("T0", "never"), ("T2", "T3")))
"""Names and prefixes of each watcher. Each has a topic of brokers."""
BROKERS = {"broker-b": 10921, "broker-c": 10931, "broker-d": 10941}
AGENTS = {0: "127.0.0.1:10911", 1: "127.0.0.1:10912"}
"""Addresses of the master and the slave that have an agent, by id."""
PINGS = ("--keepalive-time-millis", "1000")
# The guard would keep lost brokers in the routes for minutes.
SERVER = (*PINGS, "--mass-loss-percent", "100")
AGENT = ("--keepalive-time-millis", "1000", "--register-name-server-period-millis", "1000")
MANY = 10
"""Fewer revisions that were both looked up and bookmarked would say little of reliability."""
LOST_CONNECTION = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

Connect = Callable[[], AbstractContextManager[Client]]


class Recorder:
    """A thread that calls the name server until the end, over a new connection whenever one is lost."""

    def __init__(self, connect: Connect) -> None:
        self.unexpected: list[str] = []
        self._connect = connect
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        eventually(self._has_ended)

    def cut(self, *, whole_connection: bool) -> None:
        """Cuts what is open, if there is anything."""

    def _has_ended(self) -> bool:
        self.cut(whole_connection=False)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(0.01):
            with self._connect() as client:
                try:
                    self._record(client)
                except grpc.RpcError as error:
                    self._lost(RichError.of(error))

    def _record(self, client: Client) -> None:
        raise NotImplementedError

    def _lost(self, error: RichError) -> None:
        if error.code not in LOST_CONNECTION:
            self.unexpected.append(str(error))


class Watcher(Recorder):
    """Watches topics and goes on after its last bookmark, or anew when the epoch has changed."""

    def __init__(self, connect: Connect, topics: tuple[str, ...], prefixes: tuple[str, ...]) -> None:
        super().__init__(connect)
        self.lives: list[list[WatchedStream]] = [[]]
        """Streams in the order of opening; each life begins with one that started anew, and is of one epoch."""
        self._asked = pb.WatchTopicRoutesRequest(topics=topics, topic_prefixes=prefixes)
        self._open: tuple[grpc.Channel, Any] | None = None

    def cut(self, *, whole_connection: bool) -> None:
        """Ends the stream as a lost connection does, or as a client that no longer reads."""
        if self._open is not None:
            connection, call = self._open
            if whole_connection:
                connection.close()
            else:
                call.cancel()

    def has_reached(self, point: tuple[str, int]) -> bool:
        """Whether it has a bookmark of this epoch and of this revision or a later one."""
        epoch, revision = last_bookmark(self.lives[-1]) or ("", -1)
        return epoch == point[0] and revision >= point[1]

    def agrees_with(self, truth: Mapping[str, Route]) -> bool:
        """Whether it holds, of what it asked for, what is really there."""
        held = {}
        for bookmark in held_at_bookmarks(self.lives[-1]):
            held = dict(bookmark.routes)
        asked = WatchedStream(self._asked)
        return all(held.get(topic) == route for topic, route in truth.items() if asked.asks_for(topic))

    def _record(self, client: Client) -> None:
        after = last_bookmark(self.lives[-1])
        if after is None and self.lives[-1]:
            self.lives.append([])
        stream = WatchedStream(pb.WatchTopicRoutesRequest())
        stream.request.CopyFrom(self._asked)
        if after is not None:
            stream.request.resume_after.epoch, stream.request.resume_after.revision = after
        call = client.routes.WatchTopicRoutes(iter([stream.request]), timeout=60)
        self._open = client.connection, call
        for message in call:
            if not stream.messages:
                self.lives[-1].append(stream)
            stream.messages.append(message)

    def _lost(self, error: RichError) -> None:
        if error.reason == "EPOCH_CHANGED":
            self.lives.append([])
        else:
            super()._lost(error)


class Lookups(Recorder):
    """Looks all topics up, again and again, and keeps what differs from the answer before."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.found: list[Lookup] = []

    def _record(self, client: Client) -> None:
        before = None
        while not self._ending.wait(0.003):
            answer = client.routes.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=TOPICS), timeout=TIMEOUT)
            if answer != before:
                header = answer.header
                rows = [
                    *((row.topic, row.route) for row in answer.routes),
                    *((t, None) for t in answer.topics_not_found),
                ]
                self.found += (Lookup(header.epoch, header.revision, topic, route) for topic, route in rows)
            before = answer


class Fleet:
    """A name server, agents, brokers without one, watchers and lookups; and what can happen to them."""

    def __init__(self, rng: random.Random, stack: ExitStack) -> None:
        self._rng, self._stack = rng, stack
        self.log: list[str] = []
        self._server = stack.enter_context(NamesrvProcess(*SERVER))
        # A name server that comes back has the same port, so this one way to connect does for all of them.
        self._connect = self._server.connect
        self._client = stack.enter_context(self._connect())
        self._brokers: dict[str, ExitStack] = {}
        self._versions = 0
        self._agents = {broker_id: self._start_agent(broker_id) for broker_id in AGENTS}
        self.watchers = [stack.enter_context(Watcher(self._connect, *watched)) for watched in WATCHED]
        self.lookups = stack.enter_context(Lookups(self._connect))

    def faults(self) -> list[Callable[[], None]]:
        """Every kind of fault some times, in random order."""
        # The name server stops for a shorter and for a longer time than its agents wait for an answer to a ping.
        stops: list[Callable[[], None]] = [partial(self._stop_server, seconds) for seconds in (0.1, 8.0)]
        rare = [*stops, self._kill_agent, self._stop_agent, self._restart_server]
        often = [self._change_topics] * 16 + [self._cut_watcher] * 10 + [self._unregister] * 4 + [self._cut_broker] * 4
        faults = rare + often
        self._rng.shuffle(faults)
        return faults

    def all_catch_up(self) -> tuple[str, int]:
        """Waits until every watcher knows of everything so far; returns epoch and revision of that."""
        point = self._touch()
        eventually(lambda: all(watcher.has_reached(point) for watcher in self.watchers))
        return point

    def catch_up(self) -> None:
        """Waits until a random watcher knows of everything so far; only some of the time, so that faults pile up."""
        if self._rng.random() < 0.4:
            watcher, point = self._rng.choice(self.watchers), self._touch()
            eventually(lambda: watcher.has_reached(point))

    def settle(self) -> None:
        """Waits, without faults, until everybody is there and every watcher holds what is there."""
        for name in BROKERS:
            self._register(name, OF_BROKERS)
        eventually(self._client.addrs, lambda addrs: addrs == AGENTS)
        point = self.all_catch_up()
        eventually(self._all_agree)
        eventually(lambda: self.lookups.found and self.lookups.found[-1][:2] >= point)

    def _all_agree(self) -> bool:
        truth = {topic: self._client.route(topic) for topic in TOPICS}
        return all(watcher.agrees_with(truth) for watcher in self.watchers)

    def _touch(self) -> tuple[str, int]:
        """A change that concerns every watcher; returns its epoch and revision."""
        self._versions += 1
        broker = identity("127.0.0.1:30911", name="broker-of-all")
        queues = 1 + self._versions
        request = registration((), broker, self._versions)
        request.topic_configs.extend(topic_config(topic, queues) for topic in OF_BROKERS)
        header = self._client.registration.RegisterBroker(request, timeout=TIMEOUT).header
        return header.epoch, header.revision

    def _register(self, name: str, topics: Sequence[str]) -> None:
        """Registers a broker over a new connection; the one before ends later, as a late end of a lost one does."""
        self._versions += 1
        connection = self._stack.enter_context(ExitStack())
        client = connection.enter_context(self._connect())
        broker = identity(f"127.0.0.1:{BROKERS[name]}", name=name)
        channel = client.open_channel()
        connection.callback(channel.close)
        request = registration(topics, broker, self._versions, channel.id)
        client.registration.RegisterBroker(request, timeout=TIMEOUT)
        self._brokers.pop(name, ExitStack()).close()
        self._brokers[name] = connection

    def _change_topics(self) -> None:
        for _ in range(self._rng.randint(1, 6)):  # a burst, so that watchers are cut with changes on their way
            name = self._rng.choice(list(BROKERS))
            topics = self._rng.sample(OF_BROKERS, self._rng.randint(1, len(OF_BROKERS)))
            self.log.append(f"register {name} {topics}")
            self._register(name, topics)

    def _unregister(self) -> None:
        name = self._rng.choice(list(BROKERS))
        self.log.append(f"unregister {name}")
        broker = identity(f"127.0.0.1:{BROKERS[name]}", name=name)
        request = registration_service_pb2.UnregisterBrokerRequest(broker=broker)
        self._client.registration.UnregisterBroker(request, timeout=TIMEOUT)

    def _cut_broker(self) -> None:
        name = self._rng.choice(list(BROKERS))
        self.log.append(f"cut {name}")
        self._brokers.pop(name, ExitStack()).close()

    def _cut_watcher(self) -> None:
        number, whole_connection = self._rng.randrange(len(self.watchers)), self._rng.random() < 0.7
        self.log.append(f"cut watcher {number}, {whole_connection=}")
        self.watchers[number].cut(whole_connection=whole_connection)

    def _start_agent(self, broker_id: int) -> Agent:
        namesrv = str(self._server.endpoint)
        return self._stack.enter_context(Agent(namesrv, *AGENT, broker_id=broker_id, broker_addr=AGENTS[broker_id]))

    def _kill_agent(self) -> None:
        broker_id = self._rng.choice(list(AGENTS))
        self.log.append(f"kill agent {broker_id}")
        self._agents[broker_id].kill()
        self._agents[broker_id] = self._start_agent(broker_id)

    def _stop_agent(self) -> None:
        broker_id = self._rng.choice(list(AGENTS))
        eventually(lambda: broker_id in self._client.addrs())
        self.log.append(f"stop agent {broker_id} until its channel ends")
        doubted = len(self._server.events("channel_end_doubted"))
        self._agents[broker_id].signal(signal.SIGSTOP)
        # Soon after it was stopped itself, a name server keeps brokers whose channel ends.
        eventually(
            lambda: broker_id not in self._client.addrs() or len(self._server.events("channel_end_doubted")) > doubted
        )
        self._agents[broker_id].signal(signal.SIGCONT)

    def _stop_server(self, seconds: float) -> None:
        self.log.append(f"stop the name server for {seconds} s")
        self._server.signal(signal.SIGSTOP)
        for _ in range(2):
            self._cut_watcher()
        self._cut_broker()
        threading.Event().wait(seconds)  # how long the fault lasts: nothing is waited for
        self._server.signal(signal.SIGCONT)
        self._client = self._stack.enter_context(self._connect())

    def _restart_server(self) -> None:
        self.log.append("kill the name server")
        self._server.kill()
        server = NamesrvProcess(*SERVER, port=self._server.endpoint.port)
        self._server = self._stack.enter_context(server)
        self._client = self._stack.enter_context(self._connect())

    def history(self) -> str:
        """What was done, and what was recorded."""
        lines = [*self.log]
        for epoch, revision, topic, route in self.lookups.found:
            lines.append(f"lookup {epoch} {revision} {topic}: {_line(route) if route else None}")
        for number, watcher in enumerate(self.watchers):
            for life, streams in enumerate(watcher.lives):
                for stream in streams:
                    lines.append(f"watcher {number}, life {life}: {_line(stream.request)}")
                    lines += (f"    {_line(message)}" for message in stream.messages)
        return "\n".join(lines)


def _line(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True)


def check(fleet: Fleet) -> None:
    """The promises, in each epoch by itself, and that the run was one that could break them."""
    lives: dict[str, list[list[WatchedStream]]] = {}
    for recorder in (*fleet.watchers, fleet.lookups):
        assert not recorder.unexpected
    for watcher in fleet.watchers:
        of_watcher = [(bookmark[0], life) for life in watcher.lives if (bookmark := last_bookmark(life))]
        epochs = [epoch for epoch, _ in of_watcher]
        assert len(set(epochs)) == len(epochs), f"started anew in the same epoch: {epochs}"
        for epoch, life in of_watcher:
            lives.setdefault(epoch, []).append(life)
    for epoch, clients in lives.items():
        check_promises(clients, [lookup for lookup in fleet.lookups.found if lookup.epoch == epoch])
    all_lives = [life for clients in lives.values() for life in clients]
    bookmarks = {held[:2] for life in all_lives for held in held_at_bookmarks(life)}
    assert len(lives) == 2, "one restart makes two epochs"
    assert any(stream.resumes_after for life in all_lives for stream in life)
    assert len(bookmarks & {lookup[:2] for lookup in fleet.lookups.found}) > MANY


@pytest.mark.parametrize("seed", [1, 2])
def test_the_seven_promises_hold_while_processes_are_killed_and_stopped_and_connections_are_cut(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    with ExitStack() as stack:
        fleet = Fleet(rng, stack)
        try:
            fleet.all_catch_up()
            for fault in fleet.faults():
                fault()
                fleet.catch_up()
            fleet.settle()
            check(fleet)
        except BaseException as failure:
            path = tmp_path / "history.txt"
            path.write_text(fleet.history(), encoding="utf-8")
            failure.add_note(f"seed {seed}; the history is in {path}")
            raise
