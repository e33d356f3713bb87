"""docs/metrics.md has what the programs expose: no metric is missing there, and none is made up."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from groundwork.channels import ClientFiles, ClientSecurity, open_channel
from tests.support import metrics_page
from tests.support.programs.agents import Agent, AgentClient
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import registration
from tests.support.secured.agents import agent_flags, give_agent_its_address
from tests.support.secured.fleet import Place, connected

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
Described = tuple[str, frozenset[str]]
"""Kind and labels."""


def exposed(endpoint: Any) -> dict[str, Described]:
    """Kind and labels of each metric, by the name of its samples; a histogram has its own."""
    _, text = metrics_page.get(endpoint, "/metrics")
    families = list(text_string_to_metric_families(text))
    found = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, frozenset(labels))
    return found


def documented(*prefixes: str) -> dict[str, Described]:
    """The same from the tables of the page: name, kind, labels, what it is. Only of names that begin so."""
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for names, kind, labels in rows
        for name in re.findall(r"`(\w+)`", names)
        if name.startswith(prefixes)
    }


def test_the_page_of_metrics_has_just_those_that_a_name_server_exposes(place: Place, tmp_path: Path) -> None:
    flags = (
        "--metrics-listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "data"),
        "--snapshot-interval-millis",
        "50",
        "--remoting-listen",
        "127.0.0.1:0",
    )
    with (
        NamesrvProcess(*flags, *place.flags("TLS", with_permits=False)) as namesrv,
        connected(namesrv.endpoint, place.files("TLS", None)) as client,
    ):
        # Labels show once something has happened: a broker comes and goes.
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=client.TIMEOUT)
        channel.close()
        namesrv.wait_for("broker_removed")
        started = namesrv.wait_for("namesrv_started")
        tls = ssl.create_default_context(cafile=place.authority.path)
        tls.check_hostname = False  # as RocketMQ's clients
        with RemotingClient(str(started["remoting"]), tls) as of_rocketmq:
            of_rocketmq.ask(206)
        listen = started["metrics"]
        metrics = eventually(lambda: exposed(listen), lambda now: "namesrv_snapshot_age_seconds" in now)
    assert metrics == documented("namesrv_", "grpc_server_", "process_", "python_")


def test_the_page_of_metrics_has_just_those_that_an_agent_exposes(place: Place) -> None:
    give_agent_its_address(place)
    flags = (*agent_flags(place, "broker"), "--metrics-listen", "127.0.0.1:0")
    with NamesrvProcess(*place.flags("mTLS")) as namesrv, Agent(str(namesrv.endpoint), *flags) as agent:
        listen = agent.wait_for("agent_started")["metrics"]
        # Labels show once there was a call: one to the agent, and registrations.
        security = ClientSecurity(ClientFiles(place.authority.path, *place.callers["broker"]))
        with open_channel(agent.endpoint, security=security) as connection:
            status = AgentClient(connection)
            eventually(lambda: status.target(namesrv.endpoint).registered)
        metrics = exposed(listen)
    assert metrics == documented("broker_agent_", "grpc_", "process_", "python_")
