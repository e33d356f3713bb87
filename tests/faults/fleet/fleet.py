"""A fleet of real processes: name servers with data directories, agents with topics.json files, clients that watch.

Everything that happens to a process is recorded: its end before it ends, its start after it started. So a check that
reads the records counts a process as sound only while it is.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

import grpc

from namesrv_common.endpoints import Endpoint
from tests.faults.fleet.workers import HELD_TOPIC
from tests.faults.history import History
from tests.faults.network import Network
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, Process, unused_port
from tests.support.rocketmq_programs import programs
from tests.support.rocketmq_programs.maven import NEWEST, OLD, Release
from tests.support.rocketmq_programs.programs import topics_file_of

ROOT = Path(__file__).parents[3]
LOOPBACK = "127.0.0.1"
TOPICS = ("T0", "T1", "T2", "T3", "T4", "T5")
"""Those that any group may have."""
EXPIRY_SECONDS = 25.0
"""Silence after which a broker goes, in this fleet: shorter than by default, so that runs are."""
PERIOD_SECONDS = 3.0
"""Between two registrations of an agent of this fleet, 10 % more or less."""
PINGS = ("--keepalive-time-millis", "1000")
"""What is lost in silence is noticed after 7 s. Shorter, and a busy machine would look like a loss."""
NAMESRV = (
    *PINGS,
    *("--broker-channel-expired-time-millis", str(int(EXPIRY_SECONDS * 1000))),
    *("--scan-not-active-broker-interval-millis", "1000", "--warm-up-millis", "8000"),
    # Faults that take several brokers at once would make the guard keep them for minutes, and hide when they really go.
    *("--mass-loss-percent", "100"),
    # A registration may well be younger than the snapshot file when a name server is killed.
    *("--snapshot-interval-millis", "5000", "--delete-topic-with-broker-registration"),
)
AGENT = (*PINGS, "--register-name-server-period-millis", str(int(PERIOD_SECONDS * 1000)))
ROCKETMQ_SETTINGS = (
    # A name server that cannot be reached blocks the next registration with all others for so long.
    "registerBrokerTimeoutMills=2000",
)
CONNECTION = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 6_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Of our own clients: a connection that is lost in silence is noticed within seven seconds."""
TOLD_BY_LOGS = frozenset({"own_stall", "channel_end_doubted", "mass_loss_guard"})
"""Lines of name servers that checks go by."""


@dataclass(frozen=True)
class Broker:
    """A broker with an agent, or one of RocketMQ."""

    group: str
    broker_id: int
    port: int
    is_stock: bool = False
    """Whether it has no agent, and speaks RocketMQ's own protocol."""
    release: Release | None = None
    """Of RocketMQ, if it is RocketMQ's own program and no stand-in."""

    @property
    def name(self) -> str:
        """The agent's or the broker's, in records and links."""
        return f"{self.group}-{self.broker_id}"

    @property
    def addr(self) -> str:
        """Where clients would reach it. Nobody listens there, but RocketMQ's own programs."""
        return f"127.0.0.1:{self.port}"


BROKERS = (
    Broker("broker-a", 0, 10911),
    Broker("broker-a", 1, 10912),
    Broker("broker-b", 0, 10921),
    Broker("broker-c", 0, 10931),
    Broker("broker-d", 0, 10941, is_stock=True),
)
ROCKETMQ = (
    Broker("broker-e", 0, 0, is_stock=True, release=NEWEST),
    Broker("broker-f", 0, 0, is_stock=True, release=OLD),
)
"""RocketMQ's own programs, in fleets that were asked to have them. Each fleet finds ports for them."""
JAVA = frozenset(broker.name for broker in ROCKETMQ)
JAVA_GROUPS = frozenset(broker.group for broker in ROCKETMQ)
STOCK = frozenset(broker.name for broker in (*BROKERS, *ROCKETMQ) if broker.is_stock)
"""Brokers on RocketMQ's own protocol. It has no pings: what is lost in silence is noticed by silence alone."""
SERVERS = ("namesrv-1", "namesrv-2", "namesrv-3")


class Fleet:
    """Starts, stops and kills. Nothing is running until asked for; the stack given ends all of it."""

    def __init__(
        self, folder: Path, history: History, network: Network, stack: ExitStack, seed: int, brokers: Sequence[Broker]
    ) -> None:
        self.processes: dict[str, Process] = {}
        self.brokers = tuple(replace(broker, port=unused_port()) if broker.release else broker for broker in brokers)
        """All that it has, whether they run or not."""
        groups = sorted({broker.group for broker in brokers})
        self.own_topics = {group: (f"only-{group}", *(f"{group}-{number}" for number in range(3))) for group in groups}
        """Topics of each group that no other has, so that nobody can stand in: the first is always there."""
        self.looked_up = (*TOPICS, *chain.from_iterable(self.own_topics.values()), HELD_TOPIC, "never")
        """All topics, and one that there never is."""
        self.versions = dict.fromkeys(groups, 0)
        """The last topic table of each group."""
        self.history = history
        self._folder = folder
        self._network = network
        self._stack = stack
        self._rng = random.Random(seed)
        self._changing = threading.Lock()
        self._endpoints: dict[str, Endpoint] = {}
        self._remoting: dict[str, Endpoint] = {}
        """Where name servers speak RocketMQ's own protocol."""
        self._lines_read: dict[str, int] = {}
        self._ports: dict[str, int] = defaultdict(unused_port)
        """Port of the agent of a group's master, for operators and slaves: the same ever after."""
        self._wall_began = time.time() - history.now()

    # Name servers

    def start_server(self, name: str) -> None:
        """Starts a name server; once more where it was before, on the same data."""
        before = name in self._endpoints
        port = self._endpoints[name].port if before else 0
        remoting = Endpoint(LOOPBACK, self._remoting[name].port if before else 0)
        flags = ("--name", name, "--remoting-listen", str(remoting), "--data-dir", str(self._folder / name))
        process = NamesrvProcess(*flags, *NAMESRV, port=port)
        self._keep(name, process)
        self._endpoints[name] = process.endpoint
        self._remoting[name] = Endpoint.parse(str(process.wait_for("namesrv_started")["remoting"]))
        self._note(name, "started")

    def open_way(self, client: str, server: str) -> Endpoint:
        """Where a client finds a name server that has been started."""
        endpoint = self._remoting[server] if client in STOCK else self._endpoints[server]
        return self._network.way(client, server, endpoint)

    @contextmanager
    def connect(self, server: str, client: str | None = None) -> Iterator[Client]:
        """A new connection to a name server: directly, or over the way of a client of that name."""
        endpoint = self._endpoints[server] if client is None else self.open_way(client, server)
        with grpc.insecure_channel(str(endpoint), CONNECTION) as connection:
            yield Client(connection)

    # Agents and clients

    def start_broker(self, broker: Broker) -> None:
        """Starts the agent of a broker whose topics are written already, or the broker itself."""
        namesrvs, topics = ";".join(self.ways_of(broker.name)), self._topics_file(broker.group)
        if broker.release is not None:
            # With the next table of its group: it reads no other until it ends.
            self.change_topics(broker.group)
            file = topics_file_of(self._folder / broker.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(topics, file)
        self._note(broker.name, "starting")
        if broker.release is not None:
            settings, (name, number, port) = ROCKETMQ_SETTINGS, (broker.group, broker.broker_id, broker.port)
            process: Process = programs.Broker(
                self._folder, namesrvs, name, number, release=broker.release, settings=settings, port=port
            )
        elif broker.is_stock:
            program = [sys.executable, "-m", "tests.faults.fleet.stock_broker"]
            identity = (broker.group, str(broker.broker_id), broker.addr)
            process = Process([*program, *identity, str(topics), str(PERIOD_SECONDS), namesrvs], folder=ROOT)
        else:
            # A slave copies its master's topics, so it has to find the master's agent again where it was.
            operators = f"127.0.0.1:{self._ports[broker.group]}"
            listen = ("--master-agent" if broker.broker_id else "--fast-listen", operators)
            own = ("--broker-name", broker.group, *listen, *AGENT)
            process = Agent(namesrvs, *own, broker_id=broker.broker_id, broker_addr=broker.addr, topics=topics)
        self._keep(broker.name, process)
        if isinstance(process, programs.Broker):
            process.listening()
        elif broker.is_stock:
            process.wait_for("stock_broker_started")
        self._note(broker.name, "started")

    def ways_of(self, client: str) -> list[str]:
        """Where a client finds the name servers that have been started."""
        return [str(self.open_way(client, server)) for server in self._endpoints]

    def change_topics(self, group: str | None = None) -> None:
        """Gives a group its next topic table; without one, any group whose brokers look at their topics while they run.

        A table always has the group's first own topic and the one on hold, and some of all others. Each topic has as
        many queues as the table's version says.
        """
        with self._changing:
            group = group or self._rng.choice([name for name in self.versions if name not in JAVA_GROUPS])
            version = self.versions[group] = self.versions[group] + 1
            some = self._rng.sample(TOPICS, self._rng.randint(1, len(TOPICS)))
            first, *others = self.own_topics[group]
            topics = [*some, first, *(topic for topic in others if self._rng.random() < 0.5), HELD_TOPIC]
            rows = {
                name: {"topicName": name, "readQueueNums": version, "writeQueueNums": version, "perm": 6}
                for name in topics
            }
            data_version = {"counter": version, "timestamp": 1_700_000_000_000 + version}
            path = self._topics_file(group)
            fresh = path.with_suffix(".fresh")
            fresh.write_text(json.dumps({"dataVersion": data_version, "topicConfigTable": rows}), encoding="utf-8")
            self.history.add("topics", group=group, version=version, topics=topics)
            fresh.replace(path)

    def start_client(self, name: str) -> None:
        """Starts a program that keeps the routes of all topics with route_client."""
        program = [sys.executable, "-m", "tests.faults.fleet.client_process"]
        command = [*program, ";".join(self.ways_of(name)), *self.looked_up]
        self._keep(name, Process(command, folder=ROOT))
        self.processes[name].wait_for("client_started")
        self._note(name, "started")

    # What happens to processes

    def kill(self, name: str) -> None:
        """Kills a process, as a crash would."""
        self._note(name, "killed")
        self.processes[name].signal(signal.SIGCONT)
        self.processes[name].kill()
        self._read_logs(name)

    def end(self, name: str) -> None:
        """Asks a process to end, and waits."""
        self._note(name, "ended")
        self.processes[name].terminate()
        self._read_logs(name)

    def stop(self, name: str) -> None:
        """Stops a process: it keeps its connections, and does nothing."""
        self._note(name, "stopped")
        self.processes[name].signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Lets a stopped process continue."""
        self.processes[name].signal(signal.SIGCONT)
        self._note(name, "continued")

    def read_logs(self) -> None:
        """Takes what processes have logged into the history, as far as checks go by it."""
        for name in self.processes:
            self._read_logs(name)

    def _topics_file(self, group: str) -> Path:
        return self._folder / f"{group}.json"

    def _keep(self, name: str, process: Process) -> None:
        """Takes a process that has begun."""
        if name in self.processes:
            self._read_logs(name)
        self._stack.push(process)
        self.processes[name] = process
        self._lines_read[name] = 0

    def _note(self, name: str, event: str) -> None:
        self.history.add("process", name=name, event=event)

    def _read_logs(self, name: str) -> None:
        lines = self.processes[name].lines
        begin, self._lines_read[name] = self._lines_read[name], len(lines)
        for line in lines[begin : self._lines_read[name]]:
            if line.get("event") == "told":  # by a client, which reads the same clock
                seen_at = self._run_second(line["wall"])
                self.history.add("told", client=name, pid=self.processes[name].pid, told=line["told"], seen_at=seen_at)
            elif line.get("event") in TOLD_BY_LOGS:
                at = datetime.fromisoformat(line["timestamp"])
                self.history.add("log", server=name, event=line["event"], seen_at=self._run_second(at.timestamp()))

    def _run_second(self, wall: float) -> float:
        return round(wall - self._wall_began, 4)
