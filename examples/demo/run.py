"""Two name servers and the agents of a master and a slave: kills the master's agent, and shows its history.

All processes run on loopback and end with the demo. No file stays. Run it with ``make demo``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from namesrv_api.v1 import route_data_pb2, route_service_pb2
from rich.console import Console
from rich.table import Table

from examples.demo.processes import BIN, Agent, NameServer, addresses_of, eventually
from namesrv.engines.api import native_problem

TOPIC = "TopicTest"
MASTER, MASTER_HA = "127.0.0.1:10911", "127.0.0.1:10912"
SLAVE, SLAVE_HA = "127.0.0.1:11011", "127.0.0.1:11012"
WIDTH = 120

console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


def main() -> None:
    """Runs the demo. A step that does not succeed in time ends it with an error."""
    started = time.monotonic()
    engine = "native"
    if (problem := native_problem()) is not None:
        say(f"serving on the development engine, because {problem}")
        engine = "development"
    with contextlib.ExitStack() as processes:
        say("starting two independent name servers")
        servers = [processes.enter_context(NameServer(f"namesrv-{letter}", engine)) for letter in "ab"]
        namesrv = ";".join(server.endpoint for server in servers)

        watch_along = f'.venv/bin/python examples/producer.py --rate 0 --namesrv "{namesrv}" {TOPIC}'
        console.print(f"to see a producer's view, run in a second terminal: {watch_along}", soft_wrap=True)
        say(f"starting the agents of a master ({MASTER}) and a slave ({SLAVE}) with 11 topics")
        master = processes.enter_context(start_agent(namesrv, 0))
        processes.enter_context(start_agent(namesrv, 1))
        for server in servers:
            eventually(partial(server.addresses, TOPIC), lambda addrs: addrs == {0: MASTER, 1: SLAVE})
        folder = processes.enter_context(tempfile.TemporaryDirectory(prefix="route-demo-"))
        log = str(Path(folder) / "log")
        say("ingesting a snapshot of both name servers")
        route_pipeline("ingest", "--namesrv", namesrv, "--out", log)
        console.print(cluster_table(servers))
        console.print(route_table(f"Route of {TOPIC}", servers))

        say("killing the master's agent with SIGKILL, like a crash")
        killed_at = time.monotonic()
        master.kill()
        for server in servers:
            eventually(partial(server.addresses, TOPIC), lambda addrs: addrs == {1: SLAVE})
        gone_after = time.monotonic() - killed_at
        title = f"Route of {TOPIC}: broker id 0 left both name servers after {gone_after * 1000:.0f} ms"
        console.print(route_table(title, servers))

        say("starting the master's agent again")
        back_at = time.monotonic()
        processes.enter_context(start_agent(namesrv, 0))
        for server in servers:
            eventually(partial(server.addresses, TOPIC), lambda addrs: addrs == {0: MASTER, 1: SLAVE})
        title = f"Route of {TOPIC}: the master was back on both name servers after {time.monotonic() - back_at:.1f} s"
        console.print(route_table(title, servers))

        say("ingesting the changes, and querying the topic's history")
        route_pipeline("ingest", "--namesrv", namesrv, "--out", log)
        route_pipeline("who-changed", log, TOPIC)
        route_pipeline("report", log)
    say(f"done in {time.monotonic() - started:.0f} s; all processes have ended")


def start_agent(namesrv: str, broker_id: int) -> Agent:
    """Starts the agent of the master or the slave."""
    addr, ha_server_addr = (SLAVE, SLAVE_HA) if broker_id else (MASTER, MASTER_HA)
    return Agent(namesrv, broker_id, addr, ha_server_addr)


def route_pipeline(*arguments: str) -> None:
    """Runs the route pipeline."""
    subprocess.run([str(BIN / "route-pipeline"), *arguments], check=True, timeout=300)


def cluster_table(servers: Sequence[NameServer]) -> Table:
    """Returns the clusters and brokers of each name server as a table."""
    table = Table(title="Cluster", title_justify="left")
    for heading in ("name server", "revision", "cluster", "broker", "id", "address"):
        table.add_column(heading)
    for server in servers:
        info = server.routes.GetBrokerClusterInfo(route_service_pb2.GetBrokerClusterInfoRequest(), timeout=10)
        for group in info.broker_datas:
            for broker_id, addr in addresses_of(group).items():
                header = info.header
                role = "master" if broker_id == 0 else "slave"
                table.add_row(
                    header.namesrv_name, str(header.revision), group.cluster_name, group.broker_name,
                    f"{broker_id} ({role})", addr,
                )  # fmt: skip
    return table


def route_table(title: str, servers: Sequence[NameServer]) -> Table:
    """Returns the topic's route on each name server as a table."""
    table = Table(title=title, title_justify="left")
    for heading in ("name server", "revision", "broker", "addresses", "read queues", "write queues", "permission"):
        table.add_column(heading)
    for server in servers:
        answer = server.routes.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic=TOPIC), timeout=10)
        header, route = answer.header, answer.route
        for queues, group in zip(route.queue_datas, route.broker_datas, strict=True):
            addresses = ", ".join(f"{broker_id}: {addr}" for broker_id, addr in addresses_of(group).items())
            table.add_row(
                header.namesrv_name, str(header.revision), queues.broker_name, addresses,
                str(queues.read_queue_nums), str(queues.write_queue_nums), permission(queues),
            )  # fmt: skip
    return table


def permission(queues: route_data_pb2.QueueData) -> str:
    """Returns permission bits as RocketMQ writes them: read, write, inherit."""
    return "".join(letter if queues.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def say(step: str) -> None:
    """Prints the heading of a step."""
    console.print(f"\n== {step}")
    sys.stdout.flush()  # child processes write to the same terminal


if __name__ == "__main__":
    main()
