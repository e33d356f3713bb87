"""One name server, as the agent sees it: its connection, its channel, the calls to it and how they went."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc
import structlog
from broker_agent_api.v1 import broker_agent_service_pb2
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2_grpc, route_data_pb2

from broker_agent.connection_options import ConnectionOptions
from broker_agent.errors import NameServerError
from broker_agent.timing import Timing, backoff_seconds
from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError

FIRST_REOPEN_SECONDS, LONGEST_REOPEN_SECONDS = 0.2, 5.0
"""Bounds of the wait before a channel that ended is opened again."""
CLOSE_SECONDS = 2.0
"""Time for the channel's reader thread to end."""

Request = TypeVar("Request")
Response = TypeVar("Response")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """What a name server answered to a registration (RocketMQ: RegisterBrokerResult)."""

    endpoint: Endpoint
    """Who answered."""
    master_addr: str | None
    """The master's address; None for a master, and for a slave whose master this name server does not know."""
    ha_server_addr: str | None
    """Where slaves replicate from; None as above."""


class TargetListener(Protocol):
    """Who is told what happens at a name server. Called from the target's own threads; must not block."""

    def registration_wanted(self, target: NamesrvTarget) -> None:
        """A channel is open that has no registration yet, or the name server asks for the full table."""

    def registration_accepted(self) -> None:
        """A name server has accepted a registration."""


class NamesrvTarget:
    """Holds a channel to one name server open, in a thread of its own, and makes the calls to it.

    The calls may come from any thread. None of them tries twice: that is the caller's business.
    """

    def __init__(
        self, endpoint: Endpoint, holder: str, options: ConnectionOptions, listener: TargetListener, timing: Timing
    ) -> None:
        self.endpoint = endpoint
        self._holder = holder
        self._connect_seconds = options.connect_timeout_millis / 1000
        self._listener = listener
        self._timing = timing
        self._connection = grpc.insecure_channel(str(endpoint), options=options.as_grpc())
        self._stub = registration_service_pb2_grpc.RegistrationServiceStub(self._connection)
        self._reader = threading.Thread(target=self._keep_channel_open, name=f"broker-agent-channel-{endpoint}")
        self._closed = threading.Event()
        self._log = _log.bind(endpoint=str(endpoint))

        self._changed = threading.Condition()  # guards all below
        self._channel: grpc.CallIterator[pb.OpenChannelResponse] | None = None
        self._channel_id: str | None = None
        self._failures = 0
        self._registration_wanted = True
        self._registered: bool | None = None  # None: nothing is known of this name server yet
        self._generation: int | None = None
        self._status = broker_agent_service_pb2.NamesrvTargetStatus(endpoint=str(endpoint))

    @property
    def registration_wanted(self) -> bool:
        """Whether the name server lacks the registration as far as the agent knows, so that asking it is needless."""
        with self._changed:
            return self._registration_wanted

    def status(self) -> broker_agent_service_pb2.NamesrvTargetStatus:
        """How the name server is doing."""
        with self._changed:
            status = broker_agent_service_pb2.NamesrvTargetStatus()
            status.CopyFrom(self._status)
            status.channel_open = self._channel_id is not None
            status.registered = self._registered is True
            return status

    def open(self) -> None:
        """Holds a channel open from now on."""
        with self._changed:
            if self._reader.ident is None and not self._closed.is_set():
                self._reader.start()

    def close(self) -> None:
        """Ends the channel and all calls in flight, and joins the reader thread."""
        with self._changed:
            self._closed.set()
            self._cancel_channel()
            self._changed.notify_all()
        if self._reader.ident is not None:
            self._reader.join(CLOSE_SECONDS)
        self._connection.close()

    def register(self, registration: pb.RegisterBrokerRequest, deadline: float) -> RegisterBrokerResult:
        """Registers the broker over the channel.

        The first registration opens the channel. If none is open, waits for at most the connect timeout.

        Args:
            registration: Everything but the channel.
            deadline: By the injected clock.

        Raises:
            NameServerError: It did not work. If the channel is gone, another one is being opened.
        """
        try:
            channel_id = self._take_channel(deadline)
        except NameServerError as error:
            self._not_registered(str(error))
            raise
        request = pb.RegisterBrokerRequest()
        request.CopyFrom(registration)
        request.channel_id = channel_id
        try:
            response = self._call(self._stub.RegisterBroker, request, deadline)
        except NameServerError as error:
            self._registration_failed(error, channel_id)
            raise
        self._registration_succeeded(response, channel_id)
        return RegisterBrokerResult(
            self.endpoint,
            response.master_addr if response.HasField("master_addr") else None,
            response.ha_server_addr if response.HasField("ha_server_addr") else None,
        )

    def need_register(self, request: pb.QueryDataVersionRequest, deadline: float) -> bool:
        """Asks whether the name server holds another version of the topic table (RocketMQ: needRegister).

        Args:
            request: The broker and its version.
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        response = self._call(self._stub.QueryDataVersion, request, deadline)
        self._answered(response.header)
        return response.changed or (response.HasField("data_version") and response.data_version != request.data_version)

    def unregister(self, broker: route_data_pb2.BrokerIdentity, deadline: float) -> None:
        """Removes the registration that this target made last, and no later one.

        Args:
            broker: The broker.
            deadline: By the injected clock.

        Raises:
            NameServerError: There was no answer.
        """
        with self._changed:
            generation = self._generation
        request = pb.UnregisterBrokerRequest(
            broker=broker, reason=route_data_pb2.REMOVAL_REASON_UNREGISTERED, generation=generation
        )
        response = self._call(self._stub.UnregisterBroker, request, deadline)
        self._log.info("unregistered", removed=response.removed)

    def _take_channel(self, deadline: float) -> str:
        """Waits for the channel and counts the registration that is about to be made over it as no longer wanted."""
        self.open()
        seconds = min(self._connect_seconds, deadline - self._timing.clock())
        with self._changed:
            self._changed.wait_for(lambda: self._channel_id is not None or self._closed.is_set(), max(0.0, seconds))
            if self._channel_id is None:
                cause = f": {self._status.last_error}" if self._status.last_error else ""
                raise NameServerError.deadline_exceeded(f"no channel is open{cause}")
            self._registration_wanted = False
            return self._channel_id

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, deadline: float
    ) -> Response:
        started = self._timing.clock()
        if started >= deadline:
            raise NameServerError.deadline_exceeded("the time for the whole was used up before the call")
        failure = ""
        try:
            return method(request, timeout=deadline - started)
        except grpc.RpcError as error:
            failed = NameServerError.of_call(error)
            failure = str(failed)
            raise failed from error
        except ValueError as error:  # gRPC's word for a connection that close() has closed meanwhile
            failure = str(error)
            raise NameServerError(RichError(grpc.StatusCode.CANCELLED, failure)) from error
        finally:
            with self._changed:
                self._status.last_latency_millis = (self._timing.clock() - started) * 1000
                self._status.last_error = failure

    def _answered(self, header: route_data_pb2.NamesrvHeader) -> None:
        with self._changed:
            self._status.namesrv_name = header.namesrv_name

    def _registration_succeeded(self, response: pb.RegisterBrokerResponse, channel_id: str) -> None:
        self._answered(response.header)
        with self._changed:
            self._failures = 0
            self._generation = response.generation
            self._status.last_registered_at_millis = int(self._timing.wall_clock() * 1000)
            # If the channel has ended since, the name server has removed again what it accepted.
            newly = self._channel_id == channel_id and self._registered is not True
            self._registered = self._registered or newly
        if newly:
            self._log.info("registered", namesrv_name=response.header.namesrv_name, generation=response.generation)
        self._listener.registration_accepted()

    def _registration_failed(self, error: NameServerError, channel_id: str) -> None:
        with self._changed:
            self._registration_wanted = True
            if error.rich.reason == "CHANNEL_GONE" and self._channel_id == channel_id:
                self._channel_id = None
                self._cancel_channel()
        self._not_registered(str(error))

    def _keep_channel_open(self) -> None:
        while not self._closed.is_set():
            ended_because = self._read_channel()
            with self._changed:
                self._channel = self._channel_id = None
                self._registration_wanted = True
                attempt, self._failures = self._failures, self._failures + 1
                self._status.last_error = ended_because
            if not self._closed.is_set():
                self._not_registered(ended_because)
            self._closed.wait(backoff_seconds(attempt, FIRST_REOPEN_SECONDS, LONGEST_REOPEN_SECONDS, self._timing.rng))

    def _read_channel(self) -> str:
        """Opens a channel and reads its events to the end. Returns why it ended."""
        with self._changed:
            if self._closed.is_set():
                return "closed by the agent"
            self._channel = channel = self._stub.OpenChannel(pb.OpenChannelRequest(holder=self._holder))
        try:
            for response in channel:
                if response.WhichOneof("event") == "closing":
                    return f"closed by the name server: {pb.ChannelClosing.Reason.Name(response.closing.reason)}"
                self._on_event(response)
        except grpc.RpcError as error:
            return str(NameServerError.of_call(error))
        finally:
            self._cancel_channel()
        return "ended by the name server"

    def _cancel_channel(self) -> None:
        if self._channel is not None:
            self._channel.cancel()  # type: ignore[no-untyped-call]

    def _on_event(self, response: pb.OpenChannelResponse) -> None:
        event = response.WhichOneof("event")
        if event == "opened":
            with self._changed:
                self._channel_id = response.opened.channel_id
                self._registration_wanted = True
                self._changed.notify_all()
            self._log.info("channel_opened")
            self._listener.registration_wanted(self)
        elif event == "full_registration_wanted":
            with self._changed:
                self._registration_wanted = True
            self._log.info("full_registration_wanted")
            self._listener.registration_wanted(self)
        else:
            self._log.debug("channel_event_passed_over", channel_event=event)

    def _not_registered(self, why: str) -> None:
        """Notes that the name server does not hold the registration; logs it once, not at each failure."""
        with self._changed:
            newly = self._registered is not False
            self._registered = False
        if newly:
            self._log.warning("not_registered", error=why)
        else:
            self._log.debug("still_not_registered", error=why)
