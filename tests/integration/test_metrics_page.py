"""docs/metrics.md has what the programs expose: no metric is missing there, and none is made up."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.agents import Agent
from tests.processes import NamesrvProcess, eventually
from tests.registrations import registration

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
Described = tuple[str, frozenset[str]]
"""Kind and labels."""


def exposed(endpoint: str) -> dict[str, Described]:
    """Kind and labels of each metric, by the name of its samples; a histogram has its own."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
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


def test_the_page_of_metrics_has_just_those_that_a_name_server_exposes() -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv, namesrv.connect() as client:
        # Labels show once something has happened: a broker comes and goes.
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=client.TIMEOUT)
        channel.close()
        namesrv.wait_for("broker_removed")
        metrics = exposed(namesrv.wait_for("namesrv_started")["metrics"])
    assert metrics == documented("namesrv_", "grpc_", "process_", "python_")


def test_the_page_of_metrics_has_just_those_that_an_agent_exposes() -> None:
    with (
        NamesrvProcess() as namesrv,
        Agent(str(namesrv.endpoint), "--metrics-listen", "127.0.0.1:0") as agent,
        agent.connect() as status,
    ):
        eventually(lambda: status.target(namesrv.endpoint).registered)
        metrics = exposed(agent.wait_for("agent_started")["metrics"])
    assert metrics == documented("broker_agent_", "process_", "python_")
