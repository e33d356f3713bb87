"""One name server as the agent sees it: its connection, its channel, and the calls to it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import (
    registration_service_pb2_grpc,
    route_data_pb2,
    route_service_pb2,
    route_service_pb2_grpc,
)

from broker_agent.broker.registration import Registration
from broker_agent.connections.options import ConnectionOptions
from broker_agent.connections.reopening import Reopening
from broker_agent.errors import NameServerError
from broker_agent.target.calls_in_flight import CallInFlight, CallsInFlight
from broker_agent.target.channel import NamesrvChannel
from broker_agent.target.record import TargetRecord
from broker_agent.target.state import TargetState
from broker_agent.timing.clock import Timing
from groundwork.channels import ClientSecurity, open_channel
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError

Request = TypeVar("Request")
Response = TypeVar("Response")
Interceptors = Sequence["grpc.UnaryUnaryClientInterceptor[Any, Any]"]  # generic in its stubs only

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """The answer of a name server to a registration (RocketMQ: RegisterBrokerResult)."""

    endpoint: Endpoint
    """Who answered."""
    master_addr: str | None
    """The master's address; None for a master, and for a slave whose master this name server does not know."""
    ha_server_addr: str | None
    """Where slaves replicate from; None as above."""
    order_topic_config: Mapping[str, str] = field(default_factory=dict)
    """Ordered topics; empty if there are none, or the name server does not tell brokers (kvTable)."""


class TargetListener(Protocol):
    """A listener to what happens at a name server. Called from the target's own threads; must not block."""

    def registration_wanted(self, target: NamesrvTarget) -> None:
        """A channel is open that has no registration yet, or the name server asks for the full table."""

    def registration_accepted(self) -> None:
        """A name server has accepted a registration."""


class NamesrvTarget:
    """Holds a channel to one name server open, in a thread of its own, and makes the calls to it.

    The calls may come from any thread. None of them retries: callers do that.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        holder: str,
        options: ConnectionOptions,
        listener: TargetListener,
        timing: Timing,
        *,
        calls: CallsInFlight,
        interceptors: Interceptors = (),
        security: ClientSecurity | None = None,
    ) -> None:
        """Creates it; calls nobody yet.

        Args:
            endpoint: Where the name server answers.
            holder: What the agent calls itself.
            options: How connections are made.
            listener: Who is told what happens.
            timing: Clocks and randomness.
            calls: Where calls under way are counted.
            interceptors: Called around each call (RocketMQ: RPCHook).
            security: What to show to the name server and to check it with; None: no TLS.
        """
        self.endpoint = endpoint
        self.record = TargetRecord(endpoint, timing)
        """For status and log."""
        self._connect_seconds = options.connect_timeout_millis / 1000
        self._compression = grpc.Compression.Gzip if options.compressed_register else None
        self._listener = listener
        self._timing = timing
        self._calls = calls
        self._connection = open_channel(endpoint, options.as_grpc(), security)
        intercepted = grpc.intercept_channel(self._connection, *interceptors)
        self._stub = registration_service_pb2_grpc.RegistrationServiceStub(intercepted)
        self._routes = route_service_pb2_grpc.RouteServiceStub(intercepted)
        self._changed = threading.Condition()  # guards all below, and the channel's id
        self._channel = NamesrvChannel(
            endpoint,
            self._stub,
            holder,
            self,
            reopening=Reopening(options.reopening, timing),
            timing=timing,
            changed=self._changed,
        )
        self.state = TargetState(self._changed, timing)
        """What the name server holds."""
        self._log = _log.bind(endpoint=str(endpoint))

    def status(self) -> agent_pb.NamesrvTargetStatus:
        """How the name server is doing."""
        status = self.record.status()
        with self._changed:
            status.channel_open = self._channel.id is not None
        return status

    def open(self) -> None:
        """Holds a channel open from now on."""
        self._channel.open()

    def close(self) -> None:
        """Ends the channel and all calls in flight, and joins the reader thread."""
        self._channel.close()
        self._connection.close()

    def sweep(self) -> None:
        """Ends calls and attempts that have waited for too long. Called once a second."""
        self._channel.sweep()

    def register(self, registration: Registration, deadline: float) -> RegisterBrokerResult:
        """Registers the broker over the channel, with its whole table.

        The first registration opens the channel. If none is open, waits for at most the connect timeout.

        Args:
            registration: What to register.
            deadline: By the injected clock.

        Raises:
            NameServerError: It did not work. If the channel is gone, another one is being opened.
        """
        return self._register(registration, registration.full(), agent_pb.REGISTRATION_KIND_FULL, deadline)

    def register_increment(
        self, registration: Registration, message: pb.RegisterBrokerRequest, deadline: float
    ) -> RegisterBrokerResult:
        """Registers what has changed, over the channel.

        Args:
            registration: What the name server holds then.
            message: The increment.
            deadline: By the injected clock.

        Raises:
            NameServerError: It did not work. With the reason NEED_FULL_REGISTRATION the whole table is to be sent.
        """
        topics = len(message.topic_configs)
        kind = agent_pb.REGISTRATION_KIND_INCREMENT if topics else agent_pb.REGISTRATION_KIND_REFRESH
        return self._register(registration, (message,), kind, deadline)

    def need_register(self, registration: Registration, deadline: float) -> bool:
        """Asks whether the name server holds another version of the topic table (RocketMQ: needRegister).

        Args:
            registration: What it should hold.
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        request = registration.query()
        try:
            response = self._call(self._stub.QueryDataVersion, request, deadline)
        except NameServerError:
            self.record.count(agent_pb.REGISTRATION_KIND_QUERY, "failed")
            raise
        self.record.answered(response.header.namesrv_name)
        held = response.data_version if response.HasField("data_version") else None
        changed = response.changed or (held is not None and held != request.data_version)
        self.record.count(agent_pb.REGISTRATION_KIND_QUERY, "changed" if changed else "unchanged")
        if not changed:
            self.record.queried()
        elif held is None:
            self._lost("the name server does not know the broker any more")
        return changed

    def holder_of_id(self, broker: route_data_pb2.BrokerIdentity, deadline: float) -> str | None:
        """The address that holds the broker's id at this name server; None if none does.

        Args:
            broker: The broker.
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        request = route_service_pb2.GetBrokerMemberGroupRequest(
            cluster_name=broker.cluster_name, broker_name=broker.broker_name
        )
        group = self._call(self._routes.GetBrokerMemberGroup, request, deadline).broker_data
        return next((addr.broker_addr for addr in group.broker_addrs if addr.broker_id == broker.broker_id), None)

    def unregister(
        self, broker: route_data_pb2.BrokerIdentity, reason: route_data_pb2.RemovalReason, deadline: float
    ) -> None:
        """Removes the registration that this target made last, and no later one.

        Args:
            broker: The broker.
            reason: Why.
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        generation = self.state.unregistering()
        self.record.unregistered()
        request = pb.UnregisterBrokerRequest(broker=broker, reason=reason, generation=generation)
        response = self._call(self._stub.UnregisterBroker, request, deadline)
        self._log.info("unregistered", removed=response.removed, reason=route_data_pb2.RemovalReason.Name(reason))

    def hand_over(self, deadline: float) -> None:
        """Says that another agent takes the broker over, so that the end of the channel does not remove it.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer, or no channel is open.
        """
        with self._changed:
            channel_id = self._channel.id
        if channel_id is None:
            raise NameServerError(RichError(grpc.StatusCode.FAILED_PRECONDITION, "no channel is open"))
        response = self._call(self._stub.HandOverChannel, pb.HandOverChannelRequest(channel_id=channel_id), deadline)
        self._log.info("handed_over", channel_grace_millis=response.channel_grace_millis)

    def drop_channel(self) -> None:
        """Ends the channel, and with it what is registered over it; another one is opened in its place."""
        with self._changed:
            if self._channel.id is not None:
                self._channel.gone(self._channel.id)

    # Events of the channel

    def channel_opened(self) -> None:
        """Nothing is registered over a new channel."""
        self.state.channel_opened()

    def channel_ready(self) -> None:
        """Asks for the registration."""
        self.record.event(agent_pb.NamesrvEvent.KIND_CHANNEL_OPENED)
        self._listener.registration_wanted(self)

    def channel_ended(self, why: str, *, was_open: bool) -> None:
        """The channel has ended, and with it the registration over it."""
        self.state.channel_ended()
        self.record.failed(why)
        if was_open:
            self.record.event(agent_pb.NamesrvEvent.KIND_CHANNEL_ENDED, why)
        self.record.not_registered(why)

    def channel_event(self, event: pb.OpenChannelResponse) -> None:
        """Takes an event of the name server; unknown events are ignored."""
        kind = event.WhichOneof("event")
        if kind == "full_registration_wanted":
            self.state.want_full()
            self.record.event(agent_pb.NamesrvEvent.KIND_FULL_REGISTRATION_WANTED)
            self._log.info("full_registration_wanted")
            self._listener.registration_wanted(self)
        elif kind == "order_topic_config_changed":
            self.state.want_answer()
            self.record.event(agent_pb.NamesrvEvent.KIND_ORDER_TOPIC_CONFIG_CHANGED)
        elif kind == "min_broker_id_changed":
            lowest = event.min_broker_id_changed
            detail = f"{lowest.broker_name}: {lowest.min_broker_id} at {lowest.min_broker_addr}"
            self.record.event(agent_pb.NamesrvEvent.KIND_MIN_BROKER_ID_CHANGED, detail)
            self._log.info("min_broker_id_changed", lowest=lowest.min_broker_id, addr=lowest.min_broker_addr)
        else:
            self._log.debug("channel_event_passed_over", channel_event=kind)

    # Details

    def _register(
        self,
        registration: Registration,
        messages: Sequence[pb.RegisterBrokerRequest],
        kind: agent_pb.RegistrationKind,
        deadline: float,
    ) -> RegisterBrokerResult:
        try:
            channel_id = self._take_channel(deadline)
        except NameServerError as error:
            self.record.count(kind, "failed")
            self.record.not_registered(str(error))
            raise
        try:
            for message in messages:
                request = pb.RegisterBrokerRequest()
                request.CopyFrom(message)
                request.channel_id = channel_id
                response = self._call(self._stub.RegisterBroker, request, deadline, self._compression)
        except NameServerError as error:
            self.record.count(kind, "failed")
            self._registration_failed(error, channel_id, registration)
            raise
        self.record.answered(response.header.namesrv_name)
        with self._changed:
            is_open = self._channel.id == channel_id
            self.state.accepted(registration, response.generation, channel_is_open=is_open)
        self._channel.confirmed()
        topics = sum(len(message.topic_configs) for message in messages)
        self.record.accepted(
            kind, parts=len(messages), topics=topics, generation=response.generation, channel_is_open=is_open
        )
        self._listener.registration_accepted()
        return RegisterBrokerResult(
            self.endpoint,
            response.master_addr if response.HasField("master_addr") else None,
            response.ha_server_addr if response.HasField("ha_server_addr") else None,
            dict(response.order_topic_config),
        )

    def _take_channel(self, deadline: float) -> str:
        """Waits for the channel and counts the registration that is about to be made over it as no longer wanted."""
        self.open()
        seconds = min(self._connect_seconds, deadline - self._timing.clock())
        with self._changed:
            self._changed.wait_for(lambda: self._channel.id is not None or self._channel.closed, max(0.0, seconds))
            if self._channel.id is None:
                cause = f": {error}" if (error := self.record.last_error) else ""
                raise NameServerError.deadline_exceeded(f"no channel is open{cause}")
            self.state.registering()
            return self._channel.id

    def _registration_failed(self, error: NameServerError, channel_id: str, registration: Registration) -> None:
        with self._changed:
            self.state.failed(registration, error)
            if error.rich.reason == "CHANNEL_GONE":
                self._channel.gone(channel_id)
        if error.rich.reason != "NEED_FULL_REGISTRATION":
            self.record.not_registered(str(error))

    def _lost(self, why: str) -> None:
        if self.state.lost():
            self.record.event(agent_pb.NamesrvEvent.KIND_REGISTRATION_LOST, why)
            self._log.warning("registration_lost", error=why)

    def _call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        deadline: float,
        compression: grpc.Compression | None = None,
    ) -> Response:
        started = self._timing.clock()
        if started >= deadline:
            raise NameServerError.deadline_exceeded("the time for the whole was used up before the call")
        failure = ""
        try:
            with self._calls.enter(deadline) as call:
                call.on_swept = self.record.late_answer
                return self._result(method, request, deadline - started, compression, call)
        except NameServerError as error:
            failure = str(error)
            raise
        finally:
            self.record.call_ended(self._timing.clock() - started, failure)

    @staticmethod
    def _result(
        method: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        seconds: float,
        compression: grpc.Compression | None,
        call: CallInFlight,
    ) -> Response:
        try:
            answer = method.future(request, timeout=seconds, compression=compression)
            call.begun(answer.cancel)
            return answer.result()
        except grpc.RpcError as error:
            raise NameServerError.of_call(error) from error
        except grpc.FutureCancelledError as error:
            raise NameServerError.deadline_exceeded("swept: it went on for longer than its deadline") from error
        except ValueError as error:  # gRPC's word for a connection that close() has closed meanwhile
            raise NameServerError(RichError(grpc.StatusCode.CANCELLED, str(error))) from error
