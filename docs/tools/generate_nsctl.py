#!/usr/bin/env python3
"""Writes docs/nsctl.md: the text of docs/nsctl.intro.md, and every command with its real output.

Starts two name servers of its own on free ports of loopback, and ends them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.tools.generate_states import ESCAPES, TERMINAL
from namesrv_common.endpoints import Endpoint
from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, NamesrvProcess, eventually
from tests.support.programs.rocketmq import stand_in
from tests.support.registrations import identity, registration

DOCS = Path(__file__).parents[2] / "docs"
BROKERS = (("broker-a", 0, "10.0.0.1:10911"), ("broker-a", 1, "10.0.0.2:10911"), ("broker-b", 0, "10.0.0.3:10911"))
COMMANDS = (
    "status",
    "clusters",
    "brokers",
    "brokers broker-a --cluster east --no-channel",
    "broker broker-a",
    "topics pay",
    "route orders",
    "watch orders 'pay*' --limit 2",
    "watchers",
    "diff",
    "drain broker-a --dry-run",
    "drain 'east/*' --dry-run",
    "drain broker-a --reason 'new disks'",
    "drain broker-a --reason 'new disks' --force",
    "intents",
    "explain orders",
    "doctor",
    "history broker-a --since 2h --cause WipeWritePermOfBroker",
    "history --cause WipeWritePermOfBroker --json",
    "undrain broker-a",
    "delete-topic payments --hold --dry-run",
    "delete-topic payments --for 2h --reason 'legal hold' --force",
    "unhold-topic payments",
    "kv put ORDER_TOPIC_CONFIG orders 'broker-a:4;broker-b:4'",
    "kv put ORDER_TOPIC_CONFIG orders 'broker-a:8' --if-absent",
    "kv get ORDER_TOPIC_CONFIG orders",
    "kv list ORDER_TOPIC_CONFIG",
    "kv export kvConfig.json",
    "kv delete ORDER_TOPIC_CONFIG orders",
    "settings show order",
    "settings set orderMessageEnable=true",
    "backup save fleet.json",
    "backup restore fleet.json --dry-run",
    "guard drop --dry-run",
    "route nothing",
)

RUNTIME_INFO = 28
"""RocketMQ's request code GET_BROKER_RUNTIME_INFO."""

AGENT_COMMANDS = (
    "agent status AGENT",
    "agent events AGENT",
    "agent permission AGENT 4 --dry-run",
    "agent permission AGENT 4",
    "agent role AGENT 1",
)


def main() -> None:
    """Makes the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    intro = (DOCS / "nsctl.intro.md").read_text(encoding="utf-8").rstrip()
    (DOCS / "nsctl.md").write_text(f"{intro}\n\n{examples()}", encoding="utf-8")


def examples() -> str:
    """Every command with what it says now, as the page shows it; ports are those that name servers have by default."""
    with TemporaryDirectory() as folder, _namesrv("ns-a", folder) as first, _namesrv("ns-b", folder) as second:
        environment = {**os.environ, "NAMESRV_ADDR": f"{first.endpoint};{second.endpoint}"}
        shown = []
        for command in COMMANDS:
            _register(first, BROKERS)  # each time: a slow machine makes them late
            _register(second, BROKERS[:2])
            shown.append(_shown(command, environment, folder))
        rocketmq = str(second.wait_for("namesrv_started")["remoting"])
        shown.append(_shown(f"compare-rocketmq {rocketmq}", environment, folder).replace(rocketmq, "old-1:9876"))
        with stand_in(_broker_with_messages) as broker:
            command = f"drain-status broker-a --broker-addr {broker}"
            shown.append(_shown(command, environment, folder).replace(broker, "10.0.0.1:10911"))
        public = {first.endpoint: "ns-a:9876", second.endpoint: "ns-b:9876"}
        with Agent(environment["NAMESRV_ADDR"]) as agent:
            listener = Endpoint.parse(agent.wait_for("agent_started")["fast_listening_on"])
            eventually(lambda: len(agent.events("registered")) == len(public))
            shown += [
                _shown(command.replace("AGENT", str(listener)), environment, folder) for command in AGENT_COMMANDS
            ]
        public[listener] = "broker-a:10918"
    text = "\n\n".join(shown) + "\n"
    for endpoint, name in public.items():
        for after in ":", '"', " -", " 1", " 4", " topics":  # in errors and commands, where nothing is aligned
            text = text.replace(f"{endpoint}{after}", f"{name}{after}")
        text = text.replace(str(endpoint), name.ljust(15))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _namesrv(name: str, folder: str) -> NamesrvProcess:
    # On a busy machine the commands take longer than a broker may be silent.
    never_scan = ("--scan-not-active-broker-interval-millis", "0")
    allowed = "lookups,registrations,operators,settings"
    rocketmq = ("--remoting-listen", "127.0.0.1:0", "--remoting-allow", allowed)
    return NamesrvProcess("--name", name, "--data-dir", f"{folder}/{name}", *never_scan, *rocketmq)


def _register(namesrv: NamesrvProcess, brokers: tuple[tuple[str, int, str], ...]) -> None:
    with namesrv.connect() as client:
        for name, broker_id, addr in brokers:
            request = registration(("orders", "payments"), identity(addr, broker_id, name, "east"))
            client.registration.RegisterBroker(request, timeout=client.TIMEOUT)


def _broker_with_messages(code: int) -> tuple[int, str, bytes]:
    """Answers of a broker: runtime info, or consume stats."""
    queue = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "orders"})
    offsets = {"brokerOffset": 112, "consumerOffset": 100}
    stats = {"consumeStatsList": [{"billing": [{"offsetTable": {queue: offsets}}]}]}
    info = {"table": {"putTps": "0.0 0.0 0.0", "scheduleMessageOffset_3": "40,43"}}
    return 0, "", json.dumps(info if code == RUNTIME_INFO else stats).encode()


def _shown(command: str, environment: dict[str, str], folder: str) -> str:
    words = [str(BIN / "nsctl"), *shlex.split(command)]
    run = subprocess.run(
        words, env=environment | TERMINAL, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    text = re.sub(ESCAPES, "", run.stdout + run.stderr)
    output = "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
    code = f"\n# exit code {run.returncode}" if run.returncode else ""
    return f"```console\n$ nsctl {command}\n{output}{code}\n```"


if __name__ == "__main__":
    main()
