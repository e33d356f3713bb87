#!/usr/bin/env python3
"""Writes docs/metrics.md: the text of metrics.intro.md, and the metrics of both programs with the alerts on them.

The collectors read stand-ins, whose values are of no interest. tests/integration/observability compares with programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import grpc
import yaml
from namesrv_api.v1.registration_service_pb2 import QueryDataVersionRequest
from prometheus_client import Metric

from broker_agent.observability import AgentMetrics, NameServerCalls
from docs.tools.generated_page import table, write_or_check
from namesrv.metrics import AnsweredCalls, NamesrvMetrics
from namesrv.remoting.wire import RequestCode
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.metrics_http import metrics_registry

ALERTS = Path(__file__).parents[2] / "deploy/monitoring/alerts.yaml"
SECTIONS = {
    "namesrv_": "The name server",
    "namesrv_engine_": "The native engine",
    "broker_agent_": "The agent",
    "grpc_": "Calls",
    "process_": "The process",
    "python_": "The process",
}
"""Headings by the beginning of names; the longest counts."""


def families() -> Iterator[Metric]:
    """The metrics of a name server and an agent, each once."""
    registry = metrics_registry()
    AnsweredCalls(registry, lambda: {("", grpc.StatusCode.OK): (1, 1.0)})
    with NameServerCalls(registry, None).of(Endpoint("", 0))(QueryDataVersionRequest()):
        pass  # so that it is measured
    sources = MagicMock()
    NamesrvMetrics(registry, sources).on_remoting_answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1.0, is_refused=False)
    (change,) = sources.state.change_log.listen.call_args.args
    change(MagicMock())
    stand_in = MagicMock()
    registry.register(AgentMetrics(stand_in, stand_in, stand_in, stand_in, stand_in))
    yield from registry.collect()


def labels(family: Metric) -> list[str]:
    """The labels of a metric in order, of its samples if it has any."""
    of_samples = (label for sample in family.samples for label in sample.labels if label != "le")
    return list(dict.fromkeys([*getattr(family, "_labelnames", ()), *of_samples]))


def alerts(name: str) -> str:
    """The alerts on a metric, as links to the runbook."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    found = [rule["alert"] for rule in rules if re.search(rf"\b{name}(_bucket|_count|_sum)?\b", rule["expr"])]
    return ", ".join(f"[{alert}](runbook.md#{alert.lower()})" for alert in found)


def rendered() -> str:
    sections: dict[str, list[tuple[str, ...]]] = {heading: [] for heading in SECTIONS.values()}
    for family in families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        heading = SECTIONS[max((one for one in SECTIONS if name.startswith(one)), key=len)]
        of_labels = ", ".join(f"`{label}`" for label in labels(family))
        sections[heading].append((f"`{name}`", family.type, of_labels, family.documentation, alerts(name)))
    head = ("metric", "kind", "labels", "meaning", "alerts")
    return "\n".join(f"## {heading}\n\n{table(head, rows)}" for heading, rows in sections.items())


if __name__ == "__main__":
    write_or_check("metrics", rendered())
