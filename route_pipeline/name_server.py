"""One name server as a reader asks it: its state, pins, and a snapshot or a span of changes, whole or not at all."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random

from namesrv_common.client.channels import ConnectionSettings
from namesrv_common.client.namesrv_client import NamesrvClient, RequestT, ResponseT
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from route_pipeline.options import Connecting

logger = logging.getLogger(__name__)

# Hints about a call that failed: which option to look at, by reason of the contract.

_BY_REASON = {
    "NOT_AUTHENTICATED": "look at the option 'tokenFile' (or 'token'), or 'tlsCertFile' and 'tlsKeyFile'",
    "NOT_PERMITTED": (
        "the caller that the option 'tokenFile', 'token' or 'tlsCertFile' stands for may not look routes up"
    ),
    "SNAPSHOT_GONE": (
        "it was not read for longer than the option pinSeconds, or gave way to newer reads: call load() again, and "
        "cache() what is read several times"
    ),
    "REVISION_COMPACTED": "changes were missed: start again from a snapshot, as the option onCompacted=resync does",
    "REVISION_NOT_REACHED": "the name server has not reached this revision: try again",
    "EPOCH_CHANGED": "the name server was restarted: load() again, or restart the query, which then takes a snapshot",
    "LIMIT_EXCEEDED": "start fewer reads at once",
}
_SETTINGS = {
    "leave tls_ca out": "leave the option 'tls' out",
    "if it speaks TLS, set tls_ca": "if it speaks TLS, set the option 'tls' to 'true'",
    "one of them, or set tls_server_name": "one of them in the option 'endpoints'",
    "look at the port": "look at the port in the option 'endpoints'",
    "tls_ca": "the option 'tlsCaFile'",
    "tls_cert and tls_key": "the options 'tlsCertFile' and 'tlsKeyFile'",
}
"""Options that hints on failed connections name, as they are called here."""
_MAX_ERROR_LENGTH = 600
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_SERVICE = pb.DESCRIPTOR.services_by_name["RouteService"].full_name
# gRPC repeats a call only until the first message has come: rows that are out are never read again.
_RETRIES = {
    "maxAttempts": 5,
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


class NamesrvError(Exception):
    """A name server could not be read. The text is one line and names the endpoint and the cause."""

    def __init__(self, text: str, cause: RichError | None = None) -> None:
        super().__init__(text)
        self.reason = cause.reason if cause else ""
        """The contract's reason, such as SNAPSHOT_GONE; empty if the name server sent none."""
        self.lost = cause is not None and cause.code in _LOST
        """True if the name server did not answer at all, and may answer later."""


class ColdError(NamesrvError):
    """A name server is warming up: it does not have all routes yet. It has not been read."""


def cold_error(
    namesrv: str,
    endpoint: Endpoint,
    hint: str = "wait a minute, or set the option onCold to 'wait', or to 'read' for what it has so far",
) -> ColdError:
    """The error for a name server that is warming up."""
    return ColdError(f"name server {namesrv} at {endpoint} is warming up, so brokers and topics may be missing: {hint}")


class _Security:
    """The certificates and the token that a reader's options name, as they were when the options were read."""

    options = ()

    def __init__(self, connecting: Connecting) -> None:
        shown = connecting.authorities, connecting.key, connecting.certificate
        self._credentials, self._token = grpc.ssl_channel_credentials(*shown), connecting.token

    def credentials(self) -> tuple[int, grpc.ChannelCredentials]:
        return 1, self._credentials

    def token(self) -> str | None:
        return self._token


class Connection:
    """A connection to one name server."""

    def __init__(self, endpoint: Endpoint, connecting: Connecting) -> None:
        """Connects at the first call."""
        self.total_seconds = connecting.total_seconds
        settings = ConnectionSettings(
            connect_seconds=connecting.connect_seconds,
            first_backoff_seconds=0.2,
            longest_backoff_seconds=2.0,
            keepalive_seconds=10.0,  # notices a stopped or partitioned name server long before the total time is over
            service_config=json.dumps({"methodConfig": [{"name": [{"service": _SERVICE}], "retryPolicy": _RETRIES}]}),
        )
        self._client = NamesrvClient(
            endpoint,
            # For a small call: a few attempts to connect, and the pauses between them.
            min(connecting.total_seconds, 10 + 4 * connecting.connect_seconds),
            _Security(connecting) if connecting.tls else None,
            settings=settings,
        )
        self.route = self._client.route
        self.stream_snapshot: grpc.UnaryStreamMultiCallable[
            pb.StreamRouteSnapshotRequest, pb.StreamRouteSnapshotResponse
        ] = self._client.channel.unary_stream(
            f"/{_SERVICE}/StreamRouteSnapshot",
            pb.StreamRouteSnapshotRequest.SerializeToString,
            SnapshotResponse.FromString,
        )
        """The call of a snapshot whose queues stay encoded."""

    def call(self, method: Callable[[RequestT], ResponseT], request: RequestT) -> ResponseT:
        """The answer of a small call of RouteService. Raises NamesrvError."""
        with self._failures(self._client.timeout_seconds):
            return method(request)

    def stream(
        self, method: Callable[..., grpc.CallIterator[ResponseT]], request: Message
    ) -> Generator[ResponseT, None, None]:
        """The messages of a streaming call, which has the whole time that there is. Raises NamesrvError."""
        with self._failures(self.total_seconds):
            yield from self._client.stream(method, request, self.total_seconds)

    def error(self, problem: str) -> NamesrvError:
        """An error for something that this name server sent."""
        return NamesrvError(f"name server {self._client.endpoint} {problem}")

    def name_in(self, header: route_data_pb2.NamesrvHeader) -> str:
        """The name that the name server gives itself. Raises NamesrvError if it gives none."""
        if not header.namesrv_name:
            raise self.error("does not say its name")
        return header.namesrv_name

    @contextmanager
    def _failures(self, seconds: float) -> Iterator[None]:
        """Converts a failed call into a NamesrvError."""
        try:
            yield
        except CallError as error:
            cause = error.error
            # Texts of gRPC can have several lines, and the text of a server anything.
            text = " ".join(str(cause).split())[:_MAX_ERROR_LENGTH]
            for setting, option in _SETTINGS.items():
                text = text.replace(setting, option)
            if cause.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                text += f" (it took longer than {seconds:g} s)"
            if hint := _BY_REASON.get(cause.reason):
                text += f"; {hint}"
            raise NamesrvError(f"name server {error.endpoint}: {text}", cause) from error


@lru_cache(maxsize=256)
def connect(endpoint: Endpoint, connecting: Connecting) -> Connection:
    """The connection of this process to a name server: one, until certificates or the token are others."""
    return Connection(endpoint, connecting)


_OWNER, _FIELD = pb.TopicQueues.DESCRIPTOR.name, "queue_datas"


def _with_encoded_queues() -> Any:
    """The class of a snapshot's messages in which a topic's queues are bytes: on the wire both are the same."""
    pool = descriptor_pool.DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        for message in proto.message_type:
            for field in message.field:
                if (message.name, field.name) == (_OWNER, _FIELD):
                    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(proto)

    add(pb.DESCRIPTOR)
    name = pb.StreamRouteSnapshotResponse.DESCRIPTOR.full_name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


SnapshotResponse: type[pb.StreamRouteSnapshotResponse] = _with_encoded_queues()
"""A message of a snapshot. Its ``queue_datas`` stay encoded for the readers of rows; all else is as in the contract."""


class Origin(NamedTuple):
    """A name server by the name that it gives itself, and a point of its history."""

    namesrv: str
    epoch: str
    revision: int
    taken_at_millis: int  # when the snapshot was taken, by its clock, milliseconds since the Unix epoch
    warm: bool | None  # whether it was warm then, or None if it does not say


class SnapshotStream:
    """One snapshot, whose header is read, and whose chunks are checked on their way."""

    def __init__(
        self,
        endpoint: Endpoint,
        connecting: Connecting,
        pin_id: str | None = None,
        tables: Iterable[pb.RouteTable] = (),
        *,
        cold: bool = False,
    ) -> None:
        """Starts to read.

        Args:
            pin_id: The pinned snapshot. None: the tables as they are now.
            tables: The wanted tables. Empty: all.
            cold: Whether to read a name server that is warming up. If not, it raises ColdError.
        """
        connection = connect(endpoint, connecting)
        request = pb.StreamRouteSnapshotRequest(pin_id=pin_id, tables=tables)
        self.error = connection.error
        self._responses = connection.stream(connection.stream_snapshot, request)
        first = next(self._responses, None)
        if first is None:
            raise self.error("ended the snapshot before its header")
        if first.WhichOneof("content") != "snapshot_header" or not first.HasField("header"):
            raise self.error("sent a snapshot without a header")
        header, start = first.header, first.snapshot_header
        warm = start.warm if start.HasField("warm") else None
        name = connection.name_in(header)
        self.origin = Origin(name, header.epoch, header.revision, start.taken_at_millis, warm)
        if warm is False and not cold:
            raise cold_error(name, endpoint)

    def chunks(self) -> Iterator[pb.SnapshotChunk]:
        """Yields the chunks, with encoded queues. They are a whole snapshot only if this ends without NamesrvError."""
        came: Counter[str] = Counter()
        with closing(self._responses):
            for response in self._responses:
                self._check_origin(response)
                content = response.WhichOneof("content")
                if content == "snapshot_end":
                    self._check_counts(came, response.snapshot_end)
                    return
                if content != "chunk":
                    raise self.error(f"sent {content or 'a message of an unknown kind'} within a snapshot")
                chunk = response.chunk
                came["cluster_count"] += len(chunk.clusters)
                came["topic_count"] += len(chunk.topics)
                came["queue_data_count"] += sum(len(topic.queue_datas) for topic in chunk.topics)
                came["broker_data_count"] += len(chunk.broker_datas)
                came["live_broker_count"] += len(chunk.live_brokers)
                yield chunk
        raise self.error("ended the snapshot before its end marker")

    def _check_origin(self, response: pb.StreamRouteSnapshotResponse) -> None:
        if not response.HasField("header"):
            return
        header, origin = response.header, self.origin
        if (header.namesrv_name, header.epoch, header.revision) != (origin.namesrv, origin.epoch, origin.revision):
            raise self.error(
                f"moved within a snapshot from {origin.namesrv}, epoch {origin.epoch}, revision {origin.revision} "
                f"to {header.namesrv_name}, epoch {header.epoch}, revision {header.revision}"
            )

    def _check_counts(self, came: Counter[str], end: pb.SnapshotEnd) -> None:
        for field in pb.SnapshotEnd.DESCRIPTOR.fields:
            said = getattr(end, field.name)
            if came[field.name] != said:
                raise self.error(f"sent a snapshot with {field.name} {came[field.name]}, but its end says {said}")


class Span(NamedTuple):
    """The changes of one process lifetime of a name server after a revision, up to and with another."""

    epoch: str
    after: int
    up_to: int


def read_changes(endpoint: Endpoint, connecting: Connecting, span: Span) -> Iterator[pb.StreamRouteChangesResponse]:
    """Yields messages with changes, by ascending revision; they are all only if this ends without NamesrvError."""
    request = pb.StreamRouteChangesRequest(
        after=pb.ResumePoint(epoch=span.epoch, revision=span.after), up_to_revision=span.up_to
    )
    connection, revision = connect(endpoint, connecting), span.after
    with closing(connection.stream(connection.route.StreamRouteChanges, request)) as responses:
        for response in responses:
            if response.header.epoch != span.epoch or not revision <= response.header.revision <= span.up_to:
                raise connection.error(
                    f"was asked for changes of epoch {span.epoch} after {revision} up to {span.up_to}, "
                    f"but sent epoch {response.header.epoch}, revision {response.header.revision}"
                )
            revision = response.header.revision
            if not response.HasField("changes"):
                if revision != span.up_to:
                    raise connection.error(f"ended the changes at revision {revision}, not {span.up_to}")
                return
            yield response
    raise connection.error(f"ended the changes before it reached revision {span.up_to}")


PIN_WAIT_SECONDS = 60.0
"""How long to wait where all snapshots that a name server may hold are being read."""


class NamesrvState(NamedTuple):
    """Where a name server is in its history."""

    namesrv: str  # name that it gives itself
    epoch: str  # its process lifetime
    revision: int
    compacted_revision: int  # oldest revision that changes can be read after
    warm: bool  # if not, brokers and topics may be missing


def ask_state(endpoint: Endpoint, connecting: Connecting) -> NamesrvState:
    """Asks a name server where it is. Raises NamesrvError if it cannot be reached, or refuses."""
    connection = connect(endpoint, connecting)
    status = connection.call(connection.route.GetNamesrvStatus, pb.GetNamesrvStatusRequest())
    header, name = status.header, connection.name_in(status.header)
    return NamesrvState(name, header.epoch, header.revision, status.compacted_revision, status.warm)


WARM_POLL_SECONDS = 1.0


def log_wait(endpoint: Endpoint, namesrv: str) -> None:
    logger.warning("waiting: name server %s at %s is warming up", namesrv, endpoint)


def wait_until_warm(endpoint: Endpoint, connecting: Connecting) -> NamesrvState:
    """Waits until a name server is warm, and returns where it is then. Raises ColdError after ``timeoutSeconds``."""
    until = time.monotonic() + connecting.total_seconds
    told = False
    while not (state := ask_state(endpoint, connecting)).warm:
        if not told:
            log_wait(endpoint, state.namesrv)
            told = True
        if time.monotonic() > until:
            hint = f"waited {connecting.total_seconds:g} s, the option timeoutSeconds"
            raise cold_error(state.namesrv, endpoint, hint)
        time.sleep(WARM_POLL_SECONDS)
    return state


def pin_snapshot(
    endpoint: Endpoint, connecting: Connecting, seconds: int, *, cold: bool, follow: bool = False
) -> tuple[str, str]:
    """Has a name server hold its tables as they are now. Returns its name, and the id of the pin.

    Where other reads must end first, it waits: they take seconds.

    Args:
        seconds: How long the pin is kept unless it is read from.
        cold: Whether it may be warming up. If not, it raises ColdError.
        follow: Whether the changes after the snapshot are read as well.
    """
    request = pb.PinRouteSnapshotRequest(lease_millis=seconds * 1000, follow=follow)
    connection = connect(endpoint, connecting)
    until_pinned = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, NamesrvError) and error.reason == "LIMIT_EXCEEDED"),
        stop=stop_before_delay(min(PIN_WAIT_SECONDS, connecting.total_seconds)),
        wait=wait_random(0.2, 1.0),
        reraise=True,
    )
    answer = until_pinned(connection.call, connection.route.PinRouteSnapshot, request)
    namesrv = connection.name_in(answer.header)
    if not answer.warm and not cold:
        release_snapshot(endpoint, connecting, answer.pin_id)
        raise cold_error(namesrv, endpoint)
    return namesrv, answer.pin_id


def release_snapshot(endpoint: Endpoint, connecting: Connecting, pin_id: str) -> None:
    """Lets a pin go. A failure is logged: its lease ends anyway."""
    try:
        connection = connect(endpoint, connecting)
        connection.call(connection.route.ReleaseRouteSnapshot, pb.ReleaseRouteSnapshotRequest(pin_id=pin_id))
    except NamesrvError as error:
        logger.debug("not released: %s", error)
