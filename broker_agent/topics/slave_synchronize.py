"""The copying of a master's topics to its slave (RocketMQ: SlaveSynchronize)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import grpc
import structlog
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1 import topic_config_service_pb2_grpc

from broker_agent.channel import NO_RETRIES
from broker_agent.errors import AgentError, CallRefused
from broker_agent.timing import PeriodicThread, Timing, Wait
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig
from broker_agent.topics.topic_service import MAX_PAGE_SIZE, copied_topic, version_message, version_of
from groundwork.backoff import Backoff
from groundwork.channels import ClientSecurity, open_channel
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import FailedCall, RichError
from groundwork.intake import Intake, IntakeLimits, TooMuchSent

FIRST_DELAY_SECONDS, PERIOD_SECONDS = 3.0, 10.0
"""When the first copy is made, and the time from one to the next (BrokerController.handleSlaveSynchronize)."""
LONGEST_BACKOFF_SECONDS = 60.0
"""Longest time to the next attempt while the master is away."""
JITTER = 0.1
"""Share of the period that a copy may come earlier or later."""
CALL_SECONDS = 5.0
"""Time for one page."""
MAX_PAGES = 1_000
"""Most pages of one table: a master that never ends one must not fill memory."""
TABLE_LIMITS = IntakeLimits(bytes=256 << 20, rows=1_000_000, seconds=300.0)
"""The most that all pages of a master's table may bring. Name servers accept 200,000 topics of a broker, which have at
most 110 MB."""
JOIN_SECONDS = 2.0
"""Time for the thread to end."""
_CHANNEL_OPTIONS = (
    NO_RETRIES,
    # Below our own periods, so that each of our attempts really connects and does not repeat gRPC's last failure.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A restarted container has a new address; gRPC would ask the DNS again only after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CopyFailed(AgentError):
    """The master's topics could not be read; the text says why."""


class MasterAgent:
    """A master's agent over gRPC."""

    def __init__(self, endpoint: Endpoint, security: ClientSecurity | None = None) -> None:
        self._channel = open_channel(endpoint, _CHANNEL_OPTIONS, security)
        self._stub = topic_config_service_pb2_grpc.TopicConfigServiceStub(self._channel)

    def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        """One page. Raises CopyFailed."""
        try:
            return self._stub.ListTopics(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise CopyFailed(str(RichError.of(cast("FailedCall", error)))) from error
        except ValueError as error:  # gRPC's way to say that the channel has been closed
            raise CopyFailed(str(error)) from error

    def close(self) -> None:
        self._channel.close()


class SlaveSynchronize:
    """Copies the topics every ten seconds while there is a master; keeps the last copy while there is none."""

    def __init__(
        self,
        manager: TopicConfigManager,
        master: Callable[[], Endpoint | None],
        connect: Callable[[Endpoint], MasterAgent],
        timing: Timing | None = None,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Creates it; nothing runs before ``start``. ``master`` is None if none is known, or the broker is no slave."""
        self._manager = manager
        self._master = master
        self._connect = connect
        timing = timing or Timing()
        self._clock, self._rng = timing.clock, timing.rng
        self._backoff = Backoff(2 * PERIOD_SECONDS, LONGEST_BACKOFF_SECONDS, rng=self._rng)
        self._connected_to: Endpoint | None = None
        self._connection: MasterAgent | None = None
        self._failures = 0
        self._stopped = False
        self._thread = PeriodicThread("broker-agent-slave-sync", self._work, first_delay=FIRST_DELAY_SECONDS, wait=wait)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends copying; a call under way is cut off."""
        self._stopped = True
        self._thread.stop()
        self._disconnect()
        self._thread.join(JOIN_SECONDS)
        self._disconnect()  # the thread may just have made a new connection

    def synchronize(self) -> bool:
        """Copies the topics once, if there is a master and it has another version.

        Returns:
            Whether the slave has another table now.

        Raises:
            CopyFailed: The master did not answer, or not with good topics.
            CallRefused: The copy could not be made durable.
        """
        endpoint = self._master()
        connection = self._connection_to(endpoint)
        if endpoint is None or connection is None:
            return False
        own = self._manager.table.data_version
        copied = _read_table(connection, own, Intake("the master's table", TABLE_LIMITS, self._clock))
        if copied is None or self._master() != endpoint:  # it has become master itself, or got another one
            return False
        topics, version = copied
        self._manager.copy(topics, version)
        _log.info("topics_copied", master=str(endpoint), topics=len(topics), counter=version.counter)
        return True

    def _work(self) -> float:
        try:
            self.synchronize()
        except (CopyFailed, CallRefused) as error:
            if self._failures == 0 and not self._stopped:
                _log.warning("topics_not_copied", master=str(self._connected_to), problem=str(error), kept="last copy")
            self._failures += 1
            return self._backoff.after(self._failures)
        if self._failures:
            _log.info("topics_copied_again", master=str(self._connected_to))
        self._failures = 0
        return PERIOD_SECONDS * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _connection_to(self, endpoint: Endpoint | None) -> MasterAgent | None:
        if endpoint != self._connected_to:
            self._disconnect()
            self._failures = 0
            self._connected_to = endpoint
            self._connection = self._connect(endpoint) if endpoint is not None else None
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


def master_agent_endpoint(
    configured: Endpoint | None, master_addr: str | None, own_addr: str, agent_port: int
) -> Endpoint | None:
    """Where the agent of a slave's master is.

    Args:
        configured: The setting, which wins.
        master_addr: Where clients reach the master, as the name servers say; None if it is not known.
        own_addr: Where clients reach this broker: a broker is not its own master.
        agent_port: Port that this agent listens on; the master's is taken to have the same.
    """
    if master_addr is None or master_addr == own_addr:
        return None
    if configured is not None:
        return configured
    with suppress(ValueError):
        return Endpoint(Endpoint.parse(master_addr).host, agent_port)
    return None


def _read_table(
    master: MasterAgent, own: DataVersion, intake: Intake
) -> tuple[tuple[TopicConfig, ...], DataVersion] | None:
    """All pages of the master's table, or None if it is of our version. Raises CopyFailed."""
    request = pb.ListTopicsRequest(page_size=MAX_PAGE_SIZE, unless_version=version_message(own))
    page = master.list_topics(request)
    if page.unchanged:
        return None
    topics: dict[str, TopicConfig] = {}
    first = page
    for _ in range(MAX_PAGES):
        if page.data_version != first.data_version:
            raise CopyFailed("the master's table has changed while it was read")
        try:
            intake.take(page.ByteSize(), len(page.topics))
            topics.update((message.topic_name, copied_topic(message)) for message in page.topics)
        except CallRefused as error:
            raise CopyFailed(f"the master has a topic that breaks a rule: {error}") from error
        except TooMuchSent as error:
            raise CopyFailed(str(error)) from error
        if not page.next_page_token:
            break
        page = master.list_topics(pb.ListTopicsRequest(page_size=MAX_PAGE_SIZE, page_token=page.next_page_token))
    if page.next_page_token or len(topics) != first.total:
        raise CopyFailed(f"the master says that it has {first.total} topics, and listed {len(topics)}")
    return tuple(topics.values()), version_of(first.data_version)
