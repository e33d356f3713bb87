"""The copying of a master's topics to its slave (RocketMQ: SlaveSynchronize)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import chain

import grpc
import structlog
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1 import topic_config_service_pb2_grpc

from broker_agent.timing import PeriodicThread, Timing
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig
from broker_agent.topics.topic_service import copied_topic, version_message, version_of
from namesrv_common.backoff import Backoff
from namesrv_common.client.channels import (
    ClientSecurity,
    ConnectionSettings,
    ResponseBudget,
    ResponseLimits,
    ResponseTooLarge,
    open_channel,
)
from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import Refused
from namesrv_common.grpc_errors import RichError

FIRST_DELAY_SECONDS, PERIOD_SECONDS = 3.0, 10.0
"""When the first copy is made, and the time from one to the next (BrokerController.handleSlaveSynchronize)."""
LONGEST_BACKOFF_SECONDS = 60.0
"""Longest time to the next attempt while the master is away."""
COPY_SECONDS = 60.0
"""Time for the master's whole table."""
TABLE_LIMITS = ResponseLimits(bytes=256 << 20, rows=1_000_000)
"""The most that a master's table may have. Name servers accept 200,000 topics of a broker, which have at most 110
MB."""
_CONNECTION = ConnectionSettings(first_backoff_seconds=0.1, longest_backoff_seconds=1.0)
"""Below the agent's own periods, so that each attempt really connects and does not repeat gRPC's last failure."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CopyFailed(Exception):
    """The master's topics could not be read; the text says why."""


class MasterAgent:
    """A master's agent over gRPC."""

    def __init__(self, endpoint: Endpoint, security: ClientSecurity | None = None) -> None:
        self._channel = open_channel(endpoint, _CONNECTION.options, security)
        self._stub = topic_config_service_pb2_grpc.TopicConfigServiceStub(self._channel)

    def list_topics(self, request: pb.ListTopicsRequest) -> Generator[pb.ListTopicsResponse, None, None]:
        """The messages of the master's table. Raises CopyFailed."""
        try:
            answers = self._stub.ListTopics(request, timeout=COPY_SECONDS)
            try:
                yield from answers
            finally:
                answers.cancel()  # type: ignore[no-untyped-call]
        except ValueError as error:  # gRPC's way to say that the channel has been closed
            raise CopyFailed(str(error)) from error
        except grpc.RpcError as error:
            raise CopyFailed(str(RichError.of(error))) from error

    def close(self) -> None:
        self._channel.close()


class SlaveSynchronize(PeriodicThread):
    """Copies the topics every ten seconds while there is a master; keeps the last copy while there is none."""

    def __init__(
        self,
        manager: TopicConfigManager,
        master: Callable[[], Endpoint | None],
        connect: Callable[[Endpoint], MasterAgent],
        timing: Timing,
    ) -> None:
        """Creates it; nothing runs before ``start``. ``master`` is None if none is known, or the broker is no slave."""
        super().__init__("broker-agent-slave-sync", self._copy, timing, FIRST_DELAY_SECONDS)
        self._manager = manager
        self._master = master
        self._connect = connect
        self._backoff = Backoff(2 * PERIOD_SECONDS, LONGEST_BACKOFF_SECONDS, rng=timing.rng)
        self._connected_to: Endpoint | None = None
        self._connection: MasterAgent | None = None
        self._failures = 0

    def stop(self) -> None:
        """Ends copying; a call under way is cut off."""
        self.cancel()
        self._disconnect()
        self.join()
        self._disconnect()  # the thread may just have made a new connection

    def synchronize(self) -> bool:
        """Copies the topics once, if there is a master and it has another version.

        Returns:
            Whether the slave has another table now.

        Raises:
            CopyFailed: The master did not answer, or not with good topics.
            Refused: The copy could not be made durable.
        """
        endpoint = self._master()
        if endpoint != self._connected_to:
            self._disconnect()
            self._failures, self._connected_to = 0, endpoint
            self._connection = None if endpoint is None else self._connect(endpoint)
        if self._connection is None:
            return False
        own = self._manager.table.data_version
        copied = _read_table(self._connection, own, ResponseBudget("the master's table", TABLE_LIMITS))
        if copied is None or self._master() != endpoint:  # it has become master itself, or got another one
            return False
        topics, version = copied
        self._manager.copy(topics, version)
        _log.info("topics_copied", master=str(endpoint), topics=len(topics), counter=version.counter)
        return True

    def _copy(self) -> float:
        try:
            self.synchronize()
        except (CopyFailed, Refused) as error:
            if self._failures == 0 and not self._stopping.is_set():
                _log.warning("topics_not_copied", master=str(self._connected_to), problem=str(error), kept="last copy")
            self._failures += 1
            return self._backoff.after(self._failures)
        if self._failures:
            _log.info("topics_copied_again", master=str(self._connected_to))
        self._failures = 0
        return self._timing.jittered(PERIOD_SECONDS)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _read_table(
    master: MasterAgent, own: DataVersion, budget: ResponseBudget
) -> tuple[tuple[TopicConfig, ...], DataVersion] | None:
    """The master's table, or None if its version is the slave's. Raises CopyFailed."""
    topics: dict[str, TopicConfig] = {}
    with closing(master.list_topics(pb.ListTopicsRequest(unless_version=version_message(own)))) as chunks:
        first = next(chunks, None)
        if first is None or not first.HasField("data_version"):
            raise CopyFailed("the master's answer has no version of its table")
        if first.unchanged:
            return None
        for chunk in chain((first,), chunks):
            try:
                budget.take(chunk.ByteSize(), len(chunk.topic_configs))
                topics.update((message.topic, copied_topic(message)) for message in chunk.topic_configs)
            except Refused as error:
                raise CopyFailed(f"the master has a topic that breaks a rule: {error}") from error
            except ResponseTooLarge as error:
                raise CopyFailed(str(error)) from error
    if len(topics) != first.topic_count:
        raise CopyFailed(f"the master says that it has {first.topic_count} topics, and listed {len(topics)}")
    return tuple(topics.values()), version_of(first.data_version)
