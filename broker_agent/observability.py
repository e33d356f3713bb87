"""The agent's metrics, over HTTP, and its traces, to a collector."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from broker_agent.broker_outer_api import BrokerOuterAPI
from broker_agent.broker_probe import BrokerProbe
from broker_agent.channel import Observe
from broker_agent.clients.managers import ClientManagers
from broker_agent.errors import StartError
from broker_agent.name_server import NamesrvTarget
from broker_agent.topics.manager import TopicConfigManager
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.call_metrics import DURATION_BUCKETS, CallMetrics, CallObserver
from namesrv_common.server.metrics_http import Check, Exports, MetricsServer, metrics_registry, open_telemetry
from namesrv_common.tls.certificates import Validity

if TYPE_CHECKING:
    from namesrv_common.server.tracing import Telemetry


class AgentObservability(Exports):
    """Serves metrics where a listener is set, and sends traces where a variable OTEL_... asks for them."""

    def __init__(self, listen: str | None) -> None:
        """Prepares it; answers nobody yet.

        Args:
            listen: Address of the metrics, host:port. None: no metrics.

        Raises:
            StartError: The variables OTEL_... cannot be followed.
        """
        self._listen = None if listen is None else Endpoint.parse(listen, allow_port_zero=True)
        self._registry = metrics_registry()
        try:
            super().__init__(open_telemetry("broker-agent", os.environ, traces_follow_callers=False))
        except ValueError as error:
            raise StartError(str(error)) from error
        self.calls = NameServerCalls(self._registry, self.telemetry)
        """Watches the calls that the agent makes."""
        self.observers: tuple[CallObserver, ...] = () if listen is None else (CallMetrics(self._registry),)
        """Watch the calls to the agent. These have no spans: there may be a heartbeat of every client among them."""

    def listen(self, metrics: Collector, alive: Check, ready: Check) -> None:
        """Takes the listener's port. It serves these metrics besides those of calls and of the process.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        if self._listen is None:
            return
        self._registry.register(metrics)
        try:
            self.listener = MetricsServer(self._listen, self._registry, alive, ready)
        except OSError as error:
            raise StartError(f"setting metrics_listen: {error}") from error


class NameServerCalls:
    """Counts, times and traces the calls to name servers, by gRFC A66. A call is one attempt: gRPC repeats none.

    Thread-safe. Interceptors of gRPC would register each call anew, which ends the process if another thread has closed
    the channel.
    """

    def __init__(self, registry: CollectorRegistry, telemetry: Telemetry | None) -> None:
        """Counts and times in the registry. Without ``telemetry``, calls have no spans."""
        target = ["grpc_method", "grpc_target"]
        self._started = Counter(
            "grpc_client_attempt_started", "Calls of an agent to a name server.", target, registry=registry
        )
        status = [*target, "grpc_status"]
        self._durations = [
            Histogram(f"grpc_client_{name}", text, status, buckets=DURATION_BUCKETS, registry=registry)
            for name, text in (
                ("attempt_duration_seconds", "Time of these calls with the network."),
                ("call_duration_seconds", "The same: no call is retried."),
            )
        ]
        self._telemetry = telemetry
        self._targets: set[str] = set()
        """Name servers on the list: the last call to one that left may end later."""

    def of(self, target: Endpoint) -> Observe:
        """Returns what watches the calls to a name server on the list."""
        self._targets.add(str(target))
        return partial(self._observed, str(target))

    def forget(self, target: Endpoint) -> None:
        """Drops the series of a name server that has left the list."""
        self._targets.discard(str(target))
        for metric in (self._started, *self._durations):
            metric.remove_by_labels({"grpc_target": str(target)})

    @contextmanager
    def _observed(self, target: str, request: Message) -> Iterator[tuple[tuple[str, str], ...]]:
        (service,) = request.DESCRIPTOR.file.services_by_name.values()  # files of the contract have one service each
        called = service.methods_by_name[request.DESCRIPTOR.name.removesuffix("Request")]
        method = f"{service.full_name}/{called.name}"
        metadata, code, end_span = dict[str, str](), grpc.StatusCode.OK, None
        if self._telemetry is not None and not called.server_streaming:
            end_span = self._telemetry.sent(method, target, metadata)
        if target in self._targets:
            self._started.labels(method, target).inc()
        began = time.perf_counter()
        try:
            yield tuple(metadata.items())
        except BaseException as error:
            code = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
            raise
        finally:
            for duration in self._durations if target in self._targets else ():
                duration.labels(method, target, code.name).observe(time.perf_counter() - began)
            if end_span is not None:
                end_span(code)


@dataclass(eq=False)
class AgentMetrics(Collector):
    """Read at each scrape, in the scrape's thread. All series of a name server go when it leaves the list."""

    outer_api: BrokerOuterAPI
    probe: BrokerProbe
    topic_configs: TopicConfigManager
    clients: ClientManagers
    certificates: Callable[[], Mapping[str, Validity]]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield from _of_targets(self.outer_api.targets)
        ends = GaugeMetricFamily(
            "broker_agent_certificate_not_after_seconds",
            "Expiry of a certificate, seconds since the Unix epoch.",
            labels=["use"],
        )
        for use, validity in self.certificates().items():
            ends.add_metric([use], validity.not_after.timestamp())
        yield ends
        clients, topics = self.clients, self.topic_configs
        for name, text, value in (
            ("broker_up", "0 if the probe found the broker dead.", self.probe.is_up),
            ("topics", "Topics to register.", len(topics.table.topics)),
            ("topics_broken", "1 while topics.json is broken or has invalid topics.", topics.problem is not None),
            ("client_channels", "Open client channels.", len(clients.channels)),
            ("producer_groups", "Producer groups.", len(clients.producers.groups())),
            ("producers", "Members of producer groups.", clients.producers.membership_count),
            ("consumer_groups", "Consumer groups.", len(clients.consumers.groups())),
            ("consumers", "Members of consumer groups.", clients.consumers.membership_count),
            ("filter_servers", "Filter servers.", len(clients.filter_servers.addresses)),
        ):
            yield GaugeMetricFamily(f"broker_agent_{name}", text, value=float(value))


def _of_targets(targets: tuple[NamesrvTarget, ...]) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    registered = _per_endpoint("registered", "1 if the name server has the registration.")
    age = _per_endpoint("registration_age_seconds", "Time since it confirmed the registration; normally up to 30.")
    registrations = CounterMetricFamily(
        "broker_agent_registrations",
        "Calls that keep the broker registered, by kind and result.",
        labels=["endpoint", "kind", "result"],
    )
    late = CounterMetricFamily(
        "broker_agent_late_answers", "Responses after the round's deadline.", labels=["endpoint"]
    )
    for target in targets:
        endpoint, state, report = str(target.endpoint), target.state, target.state.report()
        registered.add_metric([endpoint], float(report.registered))
        if (seconds := state.confirmed_seconds_ago) is not None:
            age.add_metric([endpoint], seconds)
        for (kind, result), count in state.counts.items():
            name = pb.RegistrationKind.Name(kind).removeprefix("REGISTRATION_KIND_").lower()
            registrations.add_metric([endpoint, name, result], count)
        late.add_metric([endpoint], report.late_answer_count)
    yield from (registered, age, registrations, late)


def _per_endpoint(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"broker_agent_{name}", text, labels=["endpoint"])
