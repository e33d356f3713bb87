"""One name server as the agent calls it: a connection, a channel, the calls over them, and their retries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2_grpc, route_data_pb2, route_service_pb2, route_service_pb2_grpc
from tenacity import RetryCallState, Retrying, retry_if_exception

from broker_agent.channel import CONNECT_SECONDS, NamesrvChannel, Observe, connection_options
from broker_agent.errors import NameServerError
from broker_agent.name_server_status import Call, NameServerStatus, next_call
from broker_agent.registration import MAX_REGISTRATION_BYTES, Registration
from broker_agent.timing import Timing
from broker_agent.topics.topic_service import version_message
from namesrv_common.backoff import Backoff
from namesrv_common.client.channels import ClientSecurity, open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError

FIRST_WAIT_SECONDS = 0.1
"""Longest wait after the first failure: a lost connection is often back at once."""
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait between two attempts, so that several fit into a registration's 6 s."""
HOLDER_SECONDS = 1.0
"""Time to ask who holds the broker id. It is short, because the answer only warns of two agents with one id."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")
T = TypeVar("T")


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later.

    A lost channel counts: by then another one is open. A name server that is shutting down says so, and is not
    asked again. Other refusals are final, too.
    """
    if not isinstance(error, NameServerError):
        return False
    rich = error.rich
    if rich.code is grpc.StatusCode.UNAVAILABLE:
        return rich.reason != "SHUTTING_DOWN"
    return rich.reason in {"CHANNEL_GONE", "OVERLOADED"}


class CallRetries:
    """Retries with exponential backoff and jitter, inside the deadline of the whole."""

    def __init__(self, timing: Timing, stopping: threading.Event) -> None:
        """Creates it. Once ``stopping`` is set, waits end and nothing is tried again."""
        self._timing = timing
        self._backoff = Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, rng=timing.rng)
        self._stopping = stopping

    def run(self, call: Callable[[], T], deadline: float) -> T:
        """Calls until it succeeds, cannot succeed, or the next attempt would begin after the deadline.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: The last attempt's error.
        """

        def out_of_time(state: RetryCallState) -> bool:
            return self._stopping.is_set() or self._timing.clock() + state.upcoming_sleep >= deadline

        def sleep(seconds: float) -> None:
            self._timing.wait(self._stopping, seconds)

        retrying = Retrying(
            retry=retry_if_exception(is_retryable), wait=self._pause, stop=out_of_time, sleep=sleep, reraise=True
        )
        return retrying(call)

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.rich.retry_after_seconds if isinstance(error, NameServerError) else None
        return max(self._backoff(state), asked_for or 0.0)


@dataclass(frozen=True, slots=True)
class Master:
    """The master as a slave knows it."""

    addr: str
    """Where clients reach it."""
    ha_server_addr: str | None
    """Where slaves replicate from; None if it named no such address."""


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """The answer of a name server to a registration (RocketMQ: RegisterBrokerResult)."""

    endpoint: Endpoint
    """The name server that answered."""
    master: Master | None = None
    """None for a master, and for a slave whose master this name server does not know."""
    order_topic_config: Mapping[str, str] = field(default_factory=dict)
    """Ordered topics; empty if there are none, or the name server does not tell brokers (kvTable)."""


class NamesrvTarget:
    """Holds a channel to one name server open, in a thread of its own, and makes the calls to it.

    The calls may come from any thread. Only ``synchronize`` tries again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        holder: str,
        on_wanted: Callable[[NamesrvTarget], None],
        timing: Timing,
        *,
        keepalive_seconds: float = 5.0,
        period_seconds: float = 30.0,
        compressed: bool = False,
        on_accepted: Callable[[], None] = lambda: None,
        observe: Observe = lambda _request: nullcontext(()),
        security: ClientSecurity | None = None,
    ) -> None:
        """Creates it; calls nobody yet.

        Args:
            on_wanted: Called when a channel is open that has no registration yet. Like ``on_accepted``, it is called in
                the target's own threads and must not block.
            keepalive_seconds: Silence after which the name server is pinged.
            period_seconds: Time between two registrations; a channel that ended is opened again within it.
            compressed: Whether registrations travel compressed, with gRPC's gzip.
            on_accepted: Called when the name server has accepted a registration.
            observe: Watches each call.
            security: Credentials for the name server, and the means to check it. None: no TLS.
        """
        self.endpoint = endpoint
        self.state = NameServerStatus(endpoint, timing)
        """The agent's knowledge of the name server."""
        self._compression = grpc.Compression.Gzip if compressed else None
        self._on_accepted = on_accepted
        self._timing = timing
        self._connection = open_channel(endpoint, connection_options(keepalive_seconds), security)
        self._observe = observe
        self._stub = registration_service_pb2_grpc.RegistrationServiceStub(self._connection)
        self._routes = route_service_pb2_grpc.RouteServiceStub(self._connection)
        self._channel = NamesrvChannel(
            self._stub, holder, self.state, lambda: on_wanted(self), observe=observe, period_seconds=period_seconds
        )
        self._log = _log.bind(endpoint=str(endpoint))

    def open(self) -> None:
        """Holds a channel open from now on."""
        self._channel.open()

    def close(self) -> None:
        """Ends the channel and all calls in flight, and joins the channel's thread."""
        self._channel.close()
        self._connection.close()

    def synchronize(
        self, wanted: Registration, deadline: float, retries: CallRetries, *, force: bool = False
    ) -> RegisterBrokerResult | None:
        """Brings the name server up to date: registers the broker if that is needed.

        Args:
            deadline: By the injected clock.
            force: Send the whole table without a version query.

        Returns:
            The answer; None if the name server holds this already, refuses it, or failed.
        """

        def following() -> Call:
            return next_call(self.state.known, wanted, self._timing.clock(), force=force)

        call = following()
        try:
            if call is Call.QUERY_VERSION and self._need_register(wanted, deadline):
                call = following()
            if call is Call.SEND_CHANGES:
                held = self.state.known.held
                try:
                    return retries.run(lambda: self.register(wanted, deadline, held), deadline)
                except NameServerError as error:
                    if error.rich.reason != "NEED_FULL_REGISTRATION":
                        raise
                call = following()
            if call is Call.SEND_ALL or (call is Call.FIND_HOLDER and self._may_take_id(wanted, deadline)):
                return retries.run(lambda: self.register(wanted, deadline), deadline)
        except NameServerError as error:
            self._log.debug("register_failed", error=str(error))
        return None

    def register(
        self, registration: Registration, deadline: float, since: Registration | None = None
    ) -> RegisterBrokerResult:
        """Registers the broker over the channel, with its whole table or with the changes since another registration.

        The first registration opens the channel. If none is open, waits for at most the connect timeout.

        Args:
            deadline: By the injected clock.
            since: What the name server holds; None to send everything.

        Raises:
            NameServerError: It did not work. If the channel has ended, another one is being opened.
        """
        message = registration.full() if since is None else registration.increment_from(since)
        assert message is not None, "next_call has found that the changes can be sent"
        kind = agent_pb.REGISTRATION_KIND_FULL
        if since is not None:
            kind = agent_pb.REGISTRATION_KIND_INCREMENT if message.topic_configs else agent_pb.REGISTRATION_KIND_REFRESH
        try:
            channel_id = self._take_channel(deadline)
        except NameServerError as error:
            self.state.not_sent(kind, error)
            raise
        try:
            request = pb.RegisterBrokerRequest()
            request.CopyFrom(message)
            request.channel_id = channel_id
            _check_size(request)
            self.state.registering()
            response = self._call(self._stub.RegisterBroker, request, deadline, self._compression)
        except NameServerError as error:
            self.state.refused(registration, kind, error)
            if error.rich.reason == "CHANNEL_GONE":
                self._channel.gone(channel_id)
            raise
        self.state.accepted(registration, kind, request, response)
        self._channel.reopening.succeeded()
        self._on_accepted()
        ha_server_addr = response.ha_server_addr if response.HasField("ha_server_addr") else None
        master = Master(response.master_addr, ha_server_addr) if response.HasField("master_addr") else None
        return RegisterBrokerResult(self.endpoint, master, dict(response.order_topic_config))

    def unregister(
        self, broker: route_data_pb2.BrokerIdentity, reason: route_data_pb2.RemovalReason, deadline: float
    ) -> None:
        """Removes the registration that this target made last, and no later one.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        generation = self.state.unregistering()
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
        channel_id = self.state.channel_id
        if channel_id is None:
            raise NameServerError(RichError(grpc.StatusCode.FAILED_PRECONDITION, "no channel is open"))
        response = self._call(self._stub.HandOverChannel, pb.HandOverChannelRequest(channel_id=channel_id), deadline)
        self._log.info("handed_over", channel_grace_millis=response.channel_grace_millis)

    def drop_channel(self) -> None:
        """Ends the channel and what is registered over it, and opens another one."""
        self._channel.gone(self.state.channel_id)

    def _need_register(self, wanted: Registration, deadline: float) -> bool:
        """Whether the name server holds another version, or did not answer (RocketMQ: needRegister)."""
        version, now = version_message(wanted.version), self._timing.clock()
        request = pb.QueryDataVersionRequest(broker=wanted.broker.identity(), data_version=version)
        try:
            # Half of the time, so that enough is left for the registration itself if the answer never comes.
            response = self._call(self._stub.QueryDataVersion, request, now + (deadline - now) / 2)
        except NameServerError as error:
            self.state.version_not_answered()
            self._log.debug("query_data_version_failed", error=str(error))
            return True
        holds_any = response.HasField("data_version")
        changed = response.changed or (holds_any and response.data_version != version)
        self.state.version_answered(response.header.namesrv_name, changed=changed, holds_any=holds_any)
        return changed

    def _may_take_id(self, wanted: Registration, deadline: float) -> bool:
        """Whether the broker id is free, or this registration may take it from another address.

        An agent that starts, changes its role or opens a channel takes the id. A periodic round leaves it to the other
        agent and logs that.
        """
        broker, claims = wanted.broker, self.state.known.claims_id
        request = route_service_pb2.GetBrokerMemberGroupRequest(
            cluster_name=broker.cluster_name, broker_name=broker.broker_name
        )
        try:
            limit = min(deadline, self._timing.clock() + HOLDER_SECONDS)
            group = self._call(self._routes.GetBrokerMemberGroup, request, limit).broker_data
        except NameServerError as error:
            self._log.debug("holder_not_known", error=str(error))
            return True
        holder = next((addr.broker_addr for addr in group.broker_addrs if addr.broker_id == broker.broker_id), None)
        if holder is None or holder == broker.broker_addr:
            return True
        if claims:
            self.state.broker_id_replaced(holder)
        else:
            self.state.broker_id_taken(holder)
        return claims

    def _take_channel(self, deadline: float) -> str:
        """Returns the id of the channel that is open, after a wait for it. Raises NameServerError."""
        self.open()
        seconds = min(CONNECT_SECONDS, deadline - self._timing.clock())
        state = self.state
        with state.changed:
            state.changed.wait_for(lambda: state.channel_id is not None or self._channel.closed, max(0.0, seconds))
            if state.channel_id is None:
                cause = f": {error}" if (error := state.report().last_error) else ""
                raise NameServerError(RichError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no channel is open{cause}"))
            return state.channel_id

    def _call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        deadline: float,
        compression: grpc.Compression | None = None,
    ) -> Response:
        started = self._timing.clock()
        if started >= deadline:
            problem = "the time for the whole was used up before the call"
            raise NameServerError(RichError(grpc.StatusCode.DEADLINE_EXCEEDED, problem))
        failure = ""
        try:
            with self._observe(request) as metadata:
                return method(request, timeout=deadline - started, metadata=metadata, compression=compression)
        except grpc.RpcError as error:
            failed = NameServerError(RichError.of(error))
            failure = str(failed)
            raise failed from error
        except ValueError as error:  # gRPC's word for a connection that close() has closed
            failure = str(error)
            raise NameServerError(RichError(grpc.StatusCode.CANCELLED, failure)) from error
        finally:
            self.state.call_ended(self._timing.clock() - started, failure)


def _check_size(request: pb.RegisterBrokerRequest) -> None:
    """Refuses what no name server takes, before it is sent. Raises NameServerError."""
    size = request.ByteSize()
    if size > MAX_REGISTRATION_BYTES:
        problem = (
            f"the registration of {len(request.topic_configs)} topics has {size} bytes, "
            f"over the limit of {MAX_REGISTRATION_BYTES}; remove topics, or shorten their names"
        )
        raise NameServerError(RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, problem, "LIMIT_EXCEEDED"))
