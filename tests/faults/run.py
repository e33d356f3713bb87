"""One run: a fleet, traffic, a schedule of faults, a history, what the checks say of it, and how long runs last."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.fleet.fleet import BROKERS, JAVA, ROCKETMQ, SERVERS, Fleet
from tests.faults.fleet.workers import Journal, Lookups, Operator, Watcher, Worker
from tests.faults.history import History, Record, of_kind
from tests.faults.invariants import AGREE_SECONDS, violations
from tests.faults.nemesis import CLIENTS, KINDS, OF_ROCKETMQ, WATCHERS, Round, World, schedule
from tests.faults.network import Network
from tests.support.programs.agents import repeating
from tests.support.programs.processes import eventually, sample

TOPICS_PAUSE_SECONDS = 0.7
"""Between two changes of topics."""
TIMEOUT = 3.0
READING_TIMEOUT = 20.0
"""Of calls that are asked once."""


def difference(fleet: Fleet) -> str:
    """What a name server has that it should not, or lacks; empty if all of them have exactly what is there."""
    digests = {}
    for server in SERVERS:
        with fleet.connect(server) as client:
            request, asked = pb.GetRouteDigestRequest(page_size=1_000), pb.GetNamesrvStatusRequest()
            try:
                brokers = client.routes.GetRouteDigest(request, timeout=TIMEOUT).brokers
                status = client.routes.GetNamesrvStatus(asked, timeout=TIMEOUT)
            except grpc.RpcError as error:
                return f"{server} did not answer: {error}"
        if status.unconfirmed_broker_count:
            return f"{server} has {status.unconfirmed_broker_count} unconfirmed brokers"
        digests[server] = {broker.broker_addr: broker for broker in brokers}
        there, wanted = set(digests[server]), {broker.addr for broker in fleet.brokers}
        if there != wanted:
            return f"{server} lacks {sorted(wanted - there)} and has {sorted(there - wanted)}"
        for broker in fleet.brokers:
            held, version = digests[server][broker.addr].data_version.counter, fleet.versions[broker.group]
            if broker.broker_id == 0 and held != version:
                return f"{server} holds table {held} of {broker.name}, not {version}"
        if digests[server] != digests[SERVERS[0]]:
            return f"{server} and {SERVERS[0]} have different digests"
    return ""


AGREE_SECONDS_OF_ROCKETMQ = AGREE_SECONDS + 10.0
"""With brokers that are RocketMQ's own programs: they register every 10 s, and not more often."""


class Profile(NamedTuple):
    """A size of run. Times are in seconds."""

    rounds: int
    fault_seconds: tuple[float, ...]
    """What faults may last. Pings find a lost peer after 7 s, and silence counts as death after 25 s."""
    rest_seconds: tuple[float, ...]
    """What may be between two rounds; a check of what must stay needs 11 s without faults."""


PROFILES = {
    "short": Profile(5, (0.5, 3.0, 9.0), (0.5, 2.0, 12.0)),
    "long": Profile(60, (0.5, 3.0, 6.9, 7.1, 15.0, 24.0, 26.0, 60.0), (0.5, 5.0, 15.0)),
}


class Run:
    """A fleet under traffic. The stack ends all of it."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int, *, rocketmq: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.history = History(folder / "history.jsonl")
        self._stack = stack
        stack.callback(self.history.close)
        self._rocketmq = rocketmq
        self._rng = random.Random(seed)
        network = stack.enter_context(Network(seed, self.history))
        brokers = (*BROKERS, *(ROCKETMQ if rocketmq else ()))
        self.fleet = Fleet(folder, self.history, network, stack, seed, brokers)
        self.world = World(self.fleet, network)
        self._workers: list[Worker] = []
        self._ending = threading.Event()

    def start(self) -> None:
        """Starts all processes, and threads that read."""
        for server in SERVERS:
            self.fleet.start_server(server)
        for client, server in self.world.ways:
            self.fleet.open_way(client, server)
        for group in self.fleet.versions:
            self.fleet.change_topics(group)
        for broker in self.fleet.brokers:
            self.fleet.start_broker(broker)
        self.settle()
        for client in CLIENTS:
            self.fleet.start_client(client)
        for server in SERVERS:
            connect = partial(self.fleet.connect, server)
            self._worker(Lookups(server, connect, self.history, self.fleet.looked_up))
            watcher = WATCHERS[server]
            way = partial(self.fleet.connect, server, watcher)
            self._worker(Journal(server, connect, self.history, tuple(self.fleet.versions)))
            self._worker(Watcher(f"{watcher} by name", server, way, self.history, self.fleet.looked_up))
            self._worker(Watcher(f"{watcher} by prefix", server, way, self.history, (), ("",)))
        self._wait_for_watches()  # clients hold their connections then
        self.take_samples("before")

    def _worker(self, worker: Worker) -> None:
        self._workers.append(self._stack.enter_context(worker))

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Operators write and topics change while it lasts."""
        with ExitStack() as stack:
            for server in SERVERS:
                rng = random.Random(f"{self._rng.random()}")
                operator = Operator(server, partial(self.fleet.connect, server), self.history, rng)
                self._workers.append(stack.enter_context(operator))
            stack.enter_context(repeating(self.fleet.change_topics, TOPICS_PAUSE_SECONDS))
            yield

    def inject(self, planned: Round) -> None:
        """Lets the faults of a round happen, together, and rests."""
        with ExitStack() as faults:
            for fault in planned.faults:
                self.history.add("fault", name=fault.name, seconds=fault.seconds)
                faults.enter_context(KINDS[fault.name](self.world, random.Random(fault.seed)))
            self._wait(max(fault.seconds for fault in planned.faults))
        self.world.taken.clear()
        self._wait(planned.rest_seconds)

    def _wait(self, seconds: float) -> None:
        self._ending.wait(seconds)  # how long a fault or a rest lasts: nothing is waited for
        self.fleet.read_logs()

    def settle(self) -> None:
        """Waits until the name servers agree on what is really there, and records how long that took."""
        began = self.history.now()
        bound = AGREE_SECONDS_OF_ROCKETMQ if self._rocketmq else AGREE_SECONDS
        while (found := difference(self.fleet)) and self.history.now() - began < bound:
            self._ending.wait(0.1)
        self.history.add("agreed", seconds=round(self.history.now() - began, 3), difference=found)

    def _wait_for_watches(self) -> tuple[int, int]:
        """Waits until each client and each thread that watches has its watch; how many are open, and should be."""
        expected = len(CLIENTS) + sum(isinstance(worker, Watcher) for worker in self._workers)
        began = self.history.now()
        while (count := self._open_watches()) != expected and self.history.now() - began < AGREE_SECONDS:
            self._ending.wait(0.1)
        return count, expected

    def _open_watches(self) -> int:
        request, count = admin_service_pb2.ListWatchersRequest(page_size=400), 0
        for server in SERVERS:
            with self.fleet.connect(server) as client:
                count += len(client.admin.ListWatchers(request, timeout=READING_TIMEOUT).watchers)
        return count

    def take_samples(self, phase: str) -> None:
        """Records what each process of ours holds, and what the event loops of name servers do."""
        for name in self.fleet.processes.keys() - JAVA:
            held = sample(self.fleet.processes[name].pid)
            if name in SERVERS:
                with self.fleet.connect(name) as client:
                    held["tasks"] = client.told_diagnostics().task_count
            self.history.add("sample", name=name, phase=phase, **held)

    def finish(self) -> list[str]:
        """Settles, takes the last samples and checks the history; returns what is broken."""
        self.settle()
        seen = {worker: worker.answers for worker in self._workers if isinstance(worker, Lookups)}
        # Each name server has to answer a lookup that began after all this.
        eventually(lambda: all(worker.answers > before + 1 for worker, before in seen.items()))
        count, expected = self._wait_for_watches()
        self.history.add("watches", open=count, expected=expected)
        self.take_samples("after")
        self.fleet.read_logs()
        self.history.close()  # what is seen of processes that are ended now is no part of the run
        broken = [repr(worker.defect) for worker in self._workers if worker.defect is not None]
        assert not broken, f"threads ended too early, and what they would have recorded is missing: {broken}"
        return violations(list(self.history.records))


def run(folder: Path, seed: int, rounds: Sequence[Round], *, rocketmq: bool) -> tuple[list[str], list[Record]]:
    """Lets a schedule happen to a fleet. The history stays in the folder, with files of the processes.

    Args:
        folder: Where files go.
        seed: Decides what operators and topics do.
        rounds: The schedule.
        rocketmq: Whether it has RocketMQ's own brokers, which need Java and jars
            (``tests.support.rocketmq_programs.maven``).

    Returns:
        What is broken, and the records.
    """
    with ExitStack() as stack:
        running = Run(stack, folder, seed, rocketmq=rocketmq)
        running.start()
        with running.traffic():
            for planned in rounds:
                running.inject(planned)
        return running.finish(), running.history.records


def run_profile(folder: Path, seed: int, name: str, faults: Sequence[str]) -> tuple[bool, str]:
    """Runs one seed of a profile.

    Returns:
        Whether all is well, and what to print, with the command that lets the same faults happen again.
    """
    profile = PROFILES[name]
    planned = schedule(seed, faults, profile.rounds, profile.fault_seconds, profile.rest_seconds)
    broken, records = run(folder, seed, planned, rocketmq=not OF_ROCKETMQ.isdisjoint(faults))
    counts = Counter(record["what"] for record in records)
    agreed = ", ".join(f"{record['seconds']:.1f} s" for record in of_kind(records, "agreed"))
    again = f"python -m tests.faults --seed {seed} --profile {name} --faults {' '.join(faults)}"
    lines = [
        f"{again}: {'BROKEN' if broken else 'all invariants hold'}",
        *(f"{record['at']:8.1f} s  {record['name']}" for record in of_kind(records, "fault")),
        f"records: {', '.join(f'{number} {what}' for what, number in sorted(counts.items()))}",
        f"name servers agreed within {agreed}",
    ]
    if broken:
        lines += [*broken[:20], f"{len(broken)} violations; history: {folder}/history.jsonl"]
    return not broken, "\n".join(lines) + "\n"
