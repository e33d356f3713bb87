"""One name server as the agent sees it: what it holds of the broker, and which call is next."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

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
from tenacity import RetryCallState, Retrying, retry_if_exception

from broker_agent.channel import ConnectionOptions, NamesrvChannel, Reopening
from broker_agent.concurrency import OuterExecutor
from broker_agent.errors import NameServerError
from broker_agent.registration import MAX_REGISTRATION_BYTES, Registration
from broker_agent.timing import Timing
from groundwork.backoff import Backoff
from groundwork.channels import ClientSecurity, open_channel
from groundwork.endpoints import MAX_ADDRESS_LENGTH, Endpoint
from groundwork.grpc_errors import RichError
from groundwork.topic_names import MAX_NAME_LENGTH

# The state that one name server holds of the broker, and the next call that follows from it.

FIRST_REFUSED_SECONDS, LONGEST_REFUSED_SECONDS = 60.0, 3_600.0
"""How long a table that a name server refused for good is not sent to it again while neither table nor channel changes;
doubled each time. Otherwise a table that breaks a rule would be sent at every period.
"""
_REFUSED_FOR_GOOD = frozenset({"INVALID_FIELD", "LIMIT_EXCEEDED"})


class TargetState:
    """Changes with each answer and with the channel. All methods may be called from any thread."""

    def __init__(self, changed: threading.Condition, timing: Timing) -> None:
        """Starts without knowing anything. ``changed`` guards this, together with the channel's id."""
        self._changed = changed
        self._timing = timing
        self._wanted = True
        self._claim = True
        self._id_doubtful = True
        self._answer_wanted = False
        self._held: Registration | None = None
        self._generation: int | None = None
        self._refused: Registration | None = None
        self._refused_until = 0.0
        self._refused_seconds = FIRST_REFUSED_SECONDS

    @property
    def registration_wanted(self) -> bool:
        """Whether the name server lacks the registration as far as the agent knows, so that asking it is needless."""
        with self._changed:
            return self._wanted

    @property
    def answer_wanted(self) -> bool:
        """Whether the answer to a registration has news, so that asking for the version is not enough."""
        with self._changed:
            return self._answer_wanted

    @property
    def claims_id(self) -> bool:
        """Whether the next registration takes the broker id also from another address that holds it."""
        with self._changed:
            return self._claim

    @property
    def id_doubtful(self) -> bool:
        """Whether another address may hold the broker's id: nothing was ever registered, or it is gone again."""
        with self._changed:
            return self._id_doubtful

    @property
    def held(self) -> Registration | None:
        """The registration that the name server holds; None if it holds none, or that is not known."""
        with self._changed:
            return self._held

    @property
    def generation(self) -> int | None:
        """The name server's number for the last registration that it accepted; None if it never did."""
        with self._changed:
            return self._generation

    def refuses(self, registration: Registration) -> bool:
        """Whether the name server has refused exactly this for good, a short while ago."""
        with self._changed:
            return registration.same_as(self._refused) and self._timing.clock() < self._refused_until

    def claim_id(self) -> None:
        """Makes the next registration take the broker id from another holder, because the broker has a new role."""
        with self._changed:
            self._claim = True

    def want_answer(self) -> None:
        """The name server has news that an answer to a registration brings."""
        with self._changed:
            self._answer_wanted = True

    def channel_opened(self) -> None:
        """Nothing is registered over a new channel."""
        with self._changed:
            self._held, self._wanted, self._claim = None, True, True

    def channel_ended(self) -> None:
        """The channel has ended, and with it the registration over it."""
        with self._changed:
            self._held, self._wanted, self._refused = None, True, None

    def registering(self) -> None:
        """A registration is about to be sent."""
        with self._changed:
            self._wanted = False

    def accepted(self, registration: Registration, generation: int, *, channel_is_open: bool) -> None:
        """The name server accepted a registration; if its channel has ended since, it has removed the broker again."""
        with self._changed:
            self._generation = generation
            self._answer_wanted = self._claim = self._id_doubtful = False
            self._held = registration if channel_is_open else None

    def failed(self, registration: Registration, error: NameServerError) -> None:
        """A registration failed.

        It is not known whether the name server accepted it, so it counts as holding nothing.
        """
        reason = error.rich.reason
        with self._changed:
            self._held, self._wanted = None, True
            self._id_doubtful = self._id_doubtful or reason == "NEED_FULL_REGISTRATION"
            if reason in _REFUSED_FOR_GOOD and "caller" not in error.rich.metadata:
                again = registration.same_as(self._refused)
                seconds = min(2 * self._refused_seconds, LONGEST_REFUSED_SECONDS) if again else FIRST_REFUSED_SECONDS
                self._refused, self._refused_seconds = registration, seconds
                self._refused_until = self._timing.clock() + seconds

    def lost(self) -> bool:
        """The name server does not know the broker. Returns whether that is news."""
        with self._changed:
            lost, self._held, self._id_doubtful = self._held is not None, None, True
            return lost

    def unregistering(self) -> int | None:
        """The agent itself is about to remove the registration. Returns its generation."""
        with self._changed:
            self._held, self._wanted = None, True
            return self._generation


# Facts about one name server, for the status and the log.

MAX_EVENTS = 16
"""Latest events that are kept."""

CallResult = Literal["accepted", "unchanged", "changed", "failed"]
"""The outcomes of calls that keep the broker registered; the two in the middle are answers to a question."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TargetRecord:
    """Remembers the state of one name server, and logs each change of it once and not at each call.

    All methods may be called from any thread.
    """

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        self._timing = timing
        self._log = _log.bind(endpoint=str(endpoint))
        self._lock = threading.Lock()
        self._registered: bool | None = None  # None: nothing is known of this name server yet
        self._status = agent_pb.NamesrvTargetStatus(endpoint=str(endpoint))
        self._events: deque[agent_pb.NamesrvEvent] = deque(maxlen=MAX_EVENTS)
        self._counts: Counter[tuple[agent_pb.RegistrationKind, CallResult]] = Counter()
        self._confirmed_at: float | None = None

    @property
    def registered(self) -> bool:
        """Whether the name server holds the registration as far as the agent knows."""
        with self._lock:
            return self._registered is True

    @property
    def last_error(self) -> str:
        """The last error; empty if the last call succeeded."""
        with self._lock:
            return self._status.last_error

    @property
    def counts(self) -> Mapping[tuple[agent_pb.RegistrationKind, CallResult], int]:
        """Calls so far that keep the broker registered."""
        with self._lock:
            return dict(self._counts)

    @property
    def confirmed_seconds_ago(self) -> float | None:
        """Time since the name server last accepted a registration or said that it holds it; None if it never did."""
        with self._lock:
            return None if self._confirmed_at is None else self._timing.clock() - self._confirmed_at

    def status(self) -> agent_pb.NamesrvTargetStatus:
        """The status, without the parts that are only known elsewhere."""
        with self._lock:
            status = agent_pb.NamesrvTargetStatus()
            status.CopyFrom(self._status)
            status.registered = self._registered is True
            status.events.extend(self._events)
            return status

    def event(self, kind: agent_pb.NamesrvEvent.Kind, detail: str = "") -> None:
        """Keeps something that happened."""
        at_millis = int(self._timing.wall_clock() * 1000)
        with self._lock:
            self._events.append(agent_pb.NamesrvEvent(kind=kind, at_millis=at_millis, detail=detail))

    def call_ended(self, seconds: float, error: str) -> None:
        """A call has ended after this time; it failed if there is an error."""
        with self._lock:
            self._status.last_latency_millis = seconds * 1000
            self._status.last_error = error

    def count(self, kind: agent_pb.RegistrationKind, result: CallResult) -> None:
        """A call that keeps the broker registered has ended."""
        with self._lock:
            self._counts[kind, result] += 1

    def failed(self, error: str) -> None:
        """Something other than a call failed."""
        with self._lock:
            self._status.last_error = error

    def answered(self, namesrv_name: str) -> None:
        """The name server has told its name."""
        with self._lock:
            self._status.namesrv_name = namesrv_name

    def late_answer(self) -> None:
        """An answer came after the wait for it was over."""
        with self._lock:
            self._status.late_answer_count += 1

    def queried(self) -> None:
        """The name server said that nothing has changed."""
        with self._lock:
            self._confirmed_at = self._timing.clock()
            self._status.last_kind = agent_pb.REGISTRATION_KIND_QUERY
            self._status.last_topic_count = 0

    def accepted(self, kind: agent_pb.RegistrationKind, *, topics: int, generation: int, channel_is_open: bool) -> None:
        """The name server accepted a registration.

        Args:
            generation: The name server's number for it.
            channel_is_open: False if its channel has ended since: then the name server has removed the broker again.
        """
        with self._lock:
            self._counts[kind, "accepted"] += 1
            self._confirmed_at = self._timing.clock()
            status = self._status
            status.last_kind, status.last_topic_count = kind, topics
            status.generation = generation
            status.last_registered_at_millis = int(self._timing.wall_clock() * 1000)
            status.broker_id_held_by = ""
            if kind == agent_pb.REGISTRATION_KIND_FULL:
                status.full_registration_count += 1
            else:
                status.increment_count += 1
            newly = channel_is_open and self._registered is not True
            self._registered = self._registered or newly
            name = status.namesrv_name
        if newly:
            self._log.info("registered", namesrv_name=name, generation=generation, topics=topics)

    def not_registered(self, why: str) -> None:
        """The name server does not hold the registration."""
        with self._lock:
            newly = self._registered is not False
            self._registered = False
        if newly:
            self._log.warning("not_registered", error=why)
        else:
            self._log.debug("still_not_registered", error=why)

    def unregistered(self) -> None:
        """The agent itself has removed the registration."""
        with self._lock:
            self._registered = None

    def broker_id_taken(self, broker_addr: str) -> None:
        """Another address holds this broker's id."""
        with self._lock:
            newly = self._status.broker_id_held_by != broker_addr
            self._status.broker_id_held_by = broker_addr
            self._registered = False
        if newly:
            self.event(agent_pb.NamesrvEvent.KIND_BROKER_ID_TAKEN, f"{broker_addr} holds it")
            self._log.error("broker_id_taken", held_by=broker_addr)

    def broker_id_replaced(self, broker_addr: str) -> None:
        """This broker is about to take its id from another address."""
        self.event(agent_pb.NamesrvEvent.KIND_BROKER_ID_REPLACED, f"{broker_addr} held it")
        self._log.warning("broker_id_replaced", held_by_until_now=broker_addr)


# One name server as the agent sees it: its connection, its channel, and the calls to it.

Request = TypeVar("Request")
Response = TypeVar("Response")
Interceptors = Sequence["grpc.UnaryUnaryClientInterceptor[Any, Any]"]  # generic in its stubs only


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


class NamesrvTarget:
    """Holds a channel to one name server open, in a thread of its own, and makes the calls to it.

    The calls may come from any thread. None of them retries: callers do that.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        holder: str,
        options: ConnectionOptions,
        on_wanted: Callable[[NamesrvTarget], None],
        timing: Timing,
        *,
        on_accepted: Callable[[], None] = lambda: None,
        interceptors: Interceptors = (),
        security: ClientSecurity | None = None,
    ) -> None:
        """Creates it; calls nobody yet.

        Args:
            on_wanted: Called when a channel is open that has no registration yet. Like ``on_accepted``, it is called in
                the target's own threads and must not block.
            on_accepted: Called when the name server has accepted a registration.
            interceptors: Called around each call (RocketMQ: RPCHook).
            security: What to show to the name server and to check it with; None: no TLS.
        """
        self.endpoint = endpoint
        self.record = TargetRecord(endpoint, timing)
        """For status and log."""
        self._connect_seconds = options.connect_timeout_millis / 1000
        self._compression = grpc.Compression.Gzip if options.compressed_register else None
        self._on_wanted = on_wanted
        self._on_accepted = on_accepted
        self._timing = timing
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
            reopening=Reopening(options.longest_wait_seconds, timing),
            timing=timing,
            changed=self._changed,
        )
        self.state = TargetState(self._changed, timing)
        """What the name server holds."""
        self._log = _log.bind(endpoint=str(endpoint))

    def status(self) -> agent_pb.NamesrvTargetStatus:
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

    def register(self, registration: Registration, deadline: float) -> RegisterBrokerResult:
        """Registers the broker over the channel, with its whole table.

        The first registration opens the channel. If none is open, waits for at most the connect timeout.

        Args:
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
            deadline: By the injected clock.

        Raises:
            NameServerError: It did not work. With the reason NEED_FULL_REGISTRATION the whole table is to be sent.
        """
        topics = len(message.topic_configs)
        kind = agent_pb.REGISTRATION_KIND_INCREMENT if topics else agent_pb.REGISTRATION_KIND_REFRESH
        return self._register(registration, message, kind, deadline)

    def need_register(self, registration: Registration, deadline: float) -> bool:
        """Asks whether the name server holds another version of the topic table (RocketMQ: needRegister).

        Args:
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
        self._on_wanted(self)

    def channel_ended(self, why: str, *, was_open: bool) -> None:
        self.state.channel_ended()
        self.record.failed(why)
        if was_open:
            self.record.event(agent_pb.NamesrvEvent.KIND_CHANNEL_ENDED, why)
        self.record.not_registered(why)

    def channel_event(self, event: pb.OpenChannelResponse) -> None:
        """Takes an event of the name server; unknown events are ignored."""
        kind = event.WhichOneof("event")
        if kind == "order_topic_config_changed":
            self.state.want_answer()
            self.record.event(agent_pb.NamesrvEvent.KIND_ORDER_TOPIC_CONFIG_CHANGED)
        elif kind == "min_broker_id_changed":
            lowest = event.min_broker_id_changed
            name, addr = lowest.broker_name[:MAX_NAME_LENGTH], lowest.min_broker_addr[:MAX_ADDRESS_LENGTH]
            detail = f"{name}: {lowest.min_broker_id} at {addr}"
            self.record.event(agent_pb.NamesrvEvent.KIND_MIN_BROKER_ID_CHANGED, detail)
            self._log.info("min_broker_id_changed", lowest=lowest.min_broker_id, addr=addr)
        else:
            self._log.debug("channel_event_passed_over", channel_event=kind)

    def _register(
        self,
        registration: Registration,
        message: pb.RegisterBrokerRequest,
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
            request = pb.RegisterBrokerRequest()
            request.CopyFrom(message)
            request.channel_id = channel_id
            _check_size(request)
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
        topics = len(message.topic_configs)
        self.record.accepted(kind, topics=topics, generation=response.generation, channel_is_open=is_open)
        self._on_accepted()
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
        self.record.failed(str(error))
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
            return method(request, timeout=deadline - started, compression=compression)
        except grpc.RpcError as error:
            failed = NameServerError.of_call(error)
            failure = str(failed)
            raise failed from error
        except ValueError as error:  # gRPC's word for a connection that close() has closed meanwhile
            failure = str(error)
            raise NameServerError(RichError(grpc.StatusCode.CANCELLED, failure)) from error
        finally:
            self.record.call_ended(self._timing.clock() - started, failure)


def _check_size(request: pb.RegisterBrokerRequest) -> None:
    """Refuses what no name server takes, before it is sent. Raises NameServerError."""
    size = request.ByteSize()
    if size > MAX_REGISTRATION_BYTES:
        problem = (
            f"the registration of {len(request.topic_configs)} topics has {size} bytes, "
            f"over the limit of {MAX_REGISTRATION_BYTES}; remove topics, or shorten their names"
        )
        raise NameServerError(RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, problem, "LIMIT_EXCEEDED"))


# Retries of a call to a name server, where one can help and there is time.

FIRST_WAIT_SECONDS = 0.1
"""Longest wait after the first failure: a lost connection is often back at once."""
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait between two attempts, so that several fit into a registration's 6 s."""

T = TypeVar("T")


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later.

    A channel that is gone counts: by then another one is open. A name server that is shutting down says so, and is not
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

    def __init__(self, timing: Timing, stopping: threading.Event, sleep: Callable[[float], None] | None = None) -> None:
        """Creates it.

        Args:
            stopping: Once set, no wait goes on and nothing is tried again.
            sleep: How to wait; by default until ``stopping`` is set.
        """
        self._timing = timing
        self._backoff = Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, rng=timing.rng)
        self._stopping = stopping
        self._sleep = sleep or self._sleep_until_stopping

    def run(self, call: Callable[[], T], deadline: float) -> T:
        """Calls until it succeeds, cannot succeed, or the next attempt would begin after the deadline.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: The last attempt's error.
        """

        def out_of_time(state: RetryCallState) -> bool:
            return self._stopping.is_set() or self._timing.clock() + state.upcoming_sleep >= deadline

        retrying = Retrying(
            retry=retry_if_exception(is_retryable),
            wait=self._wait,
            stop=out_of_time,
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(call)

    def _sleep_until_stopping(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.rich.retry_after_seconds if isinstance(error, NameServerError) else None
        return max(self._backoff(state), asked_for or 0.0)


# The sync of one name server with the broker: the agent sends nothing, a question, the changes, or everything.

HOLDER_SECONDS = 1.0
"""Time to ask who holds the broker id. It is short, because the answer only warns of two agents with one id."""


class RegistrationSync:
    """Brings one name server up to date, in a thread of the pool."""

    def __init__(self, timing: Timing, retries: CallRetries) -> None:
        self._timing = timing
        self._retries = retries

    def run(
        self, target: NamesrvTarget, registration: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        """Registers the broker with the name server if that is needed.

        Args:
            deadline: By the injected clock.
            force: Send the whole table without asking first.

        Returns:
            The answer; None if it holds this already, refuses it, or failed.
        """
        if target.state.refuses(registration):
            return None
        try:
            return self._run(target, registration, deadline, force=force)
        except NameServerError as error:
            _log.debug("register_failed", endpoint=str(target.endpoint), error=str(error))
            return None

    def _run(
        self, target: NamesrvTarget, registration: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        held = target.state.held
        if not force and not target.state.registration_wanted and held is not None:
            refresh = registration.broker.is_slave or target.state.answer_wanted
            if registration.same_as(held) and not refresh:
                if not self._need_register(target, registration, deadline):
                    return None
            elif (increment := registration.increment_from(held)) is not None:
                try:
                    return self._retries.run(
                        lambda: target.register_increment(registration, increment, deadline), deadline
                    )
                except NameServerError as error:
                    if error.rich.reason != "NEED_FULL_REGISTRATION":
                        raise
                    target.record.event(agent_pb.NamesrvEvent.KIND_NEED_FULL_REGISTRATION, error.rich.message)
        if not self._may_take_id(target, registration, deadline):
            return None
        return self._retries.run(lambda: target.register(registration, deadline), deadline)

    def _need_register(self, target: NamesrvTarget, registration: Registration, deadline: float) -> bool:
        """Whether the name server holds another version, or did not say (RocketMQ: needRegister counts that, too)."""
        now = self._timing.clock()
        try:
            # Half of the time, so that enough is left for the registration itself if the answer never comes.
            return target.need_register(registration, now + (deadline - now) / 2)
        except NameServerError as error:
            _log.debug("query_data_version_failed", endpoint=str(target.endpoint), error=str(error))
            return True

    def _may_take_id(self, target: NamesrvTarget, registration: Registration, deadline: float) -> bool:
        """Whether the broker's id is free there, or this registration shall take it from another address.

        Two agents that claim one id would otherwise take it from each other at each period, and every route would
        change as often. So an agent that starts, changes its role or opens a channel takes the id. A periodic round of
        the other agent leaves it and logs that.
        """
        claim = target.state.claims_id
        if not target.state.id_doubtful or (claim and target.state.generation is not None):
            return True
        broker = registration.broker.identity()
        now = self._timing.clock()
        try:
            holder = target.holder_of_id(broker, min(deadline, now + HOLDER_SECONDS))
        except NameServerError as error:
            _log.debug("holder_not_known", endpoint=str(target.endpoint), error=str(error))
            return True
        if holder in {None, broker.broker_addr}:
            return True
        assert holder is not None
        if claim:
            target.record.broker_id_replaced(holder)
        else:
            target.record.broker_id_taken(holder)
        return claim


# One name server's place in the thread pool.

Work = Callable[[], None]


def _nothing() -> None:
    pass


class _Turn(NamedTuple):
    """Work, and the function to call when it has ended."""

    work: Work
    ended: Work


class TargetLane:
    """Gives one name server at most one thread of the pool, however slow it is.

    With as many threads as lanes, a name server that hangs neither takes a thread from the others nor piles up work.
    """

    def __init__(self, pool: OuterExecutor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._next: _Turn | None = None
        self._running: Future[None] | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether something runs or waits for a thread."""
        with self._lock:
            return self._running is not None

    def offer(self, work: Work, ended: Work = _nothing) -> bool:
        """Runs the work in the pool unless something runs already.

        Args:
            ended: Called when it has ended and the lane is free again.

        Returns:
            Whether the work will be run; if not, ``ended`` is not called either.
        """
        with self._lock:
            if self._running is not None or self._closed:
                return False
            return self._start(_Turn(work, ended))

    def put(self, work: Work, ended: Work = _nothing) -> bool:
        """Runs the work in the pool, right after the work that runs already. It replaces work that waits for the same.

        Args:
            ended: Called when it has ended, or other work has taken its place, or the lane was closed first.

        Returns:
            Whether the work will be run, unless other work is put or the lane closed first; if not, ``ended`` is not
            called either.
        """
        with self._lock:
            if self._closed:
                return False
            if self._running is None:
                return self._start(_Turn(work, ended))
            replaced, self._next = self._next, _Turn(work, ended)
        if replaced is not None:
            replaced.ended()
        return True

    def close(self) -> Future[None] | None:
        """Starts nothing further. Returns the work that still runs, to be waited for."""
        with self._lock:
            self._closed = True
            dropped, self._next = self._next, None
            running = self._running
        if dropped is not None:
            dropped.ended()
        return running

    def _start(self, turn: _Turn) -> bool:
        self._running = self._pool.submit(lambda: self._run(turn))
        if self._running is None:
            _log.warning("call_refused", error="too many calls to name servers wait for a thread")
        return self._running is not None

    def _run(self, first: _Turn) -> None:
        turn: _Turn | None = first
        while turn is not None:
            try:
                turn.work()
            except Exception:  # noqa: BLE001 - the boundary of a pool thread: nobody else would ever see the error
                _log.exception("registration_task_failed")
            with self._lock:
                following, self._next = self._next, None
                if following is None:
                    self._running = None
            turn.ended()
            turn = following
