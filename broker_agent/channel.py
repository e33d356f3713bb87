"""The channel to one name server: its options, its stream, and the pause before it is opened again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import grpc
import structlog
from broker_agent_api.v1.broker_agent_service_pb2 import NamesrvEvent
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2_grpc

from broker_agent.name_server_status import NameServerStatus
from broker_agent.timing import PeriodicThread, Timing
from namesrv_common.backoff import Backoff
from namesrv_common.client.channels import ConnectionSettings, Options
from namesrv_common.endpoints import MAX_ADDRESS_LENGTH
from namesrv_common.grpc_errors import RichError
from namesrv_common.topic_names import MAX_NAME_LENGTH

FIRST_WAIT_SECONDS = 0.2
"""Longest wait after a channel that worked has ended: mostly a passing fault, and the broker is not routed."""
CONNECT_SECONDS = 3.0
"""Time to connect and, for a registration, to wait for the channel (RocketMQ: connectTimeoutMillis)."""
LONGEST_WAIT_SECONDS = 5.0
"""Longest wait at all. The agents of a name server that was away come back spread over this time."""


class Reopening:
    """Exponential backoff with jitter for one name server.

    A name server that says that it is shutting down, or cannot be reached, will be away for longer than a fault of the
    network. Then the wait is anything up to the longest, so that a thousand agents do not come back in the same second.
    """

    def __init__(self, period_seconds: float, timing: Timing) -> None:
        """Waits no longer than a period of registrations."""
        self._longest_seconds = min(LONGEST_WAIT_SECONDS, period_seconds)
        self._rng = timing.rng
        self._backoff = Backoff(FIRST_WAIT_SECONDS, self._longest_seconds, (1.0, 1.0), rng=timing.rng)
        self._failures = 0

    def succeeded(self) -> None:
        """The name server has accepted a registration, so the next wait is a short one again."""
        self._failures = 0

    def next_wait(self, *, shutting_down: bool) -> float:
        """Seconds to wait after an end, also one that the name server announced, or after a failure to open."""
        self._failures += 1
        step = self._longest_seconds if shutting_down else self._backoff.after(self._failures)
        return self._rng.uniform(min(FIRST_WAIT_SECONDS, step) / 2, step)


EVENT_PAUSE_SECONDS = 0.001
"""Pause before an event is taken. A name server queues 64 for one channel. One that floods the channel is blocked by
gRPC, because the agent reads no more."""
OPENED_SECONDS = 10.0
"""Time for the first message of a channel. Another program at the port may accept a stream and say nothing."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Observe = Callable[[Message], AbstractContextManager[tuple[tuple[str, str], ...]]]
"""Watches the call with this request (RocketMQ: RPCHook). Gives the metadata to send."""


class NamesrvChannel(PeriodicThread):
    """Opens a channel, reads its events, and opens another one when it ends."""

    def __init__(
        self,
        stub: registration_service_pb2_grpc.RegistrationServiceStub,
        holder: str,
        status: NameServerStatus,
        on_open: Callable[[], None],
        *,
        observe: Observe,
        period_seconds: float,
    ) -> None:
        """Creates it; opens nothing yet. The thread calls ``on_open`` for each channel; it must not block."""
        super().__init__(f"broker-agent-channel-{status.endpoint}", self._run_channel, status.timing)
        self._stub = stub
        self._holder = holder
        self._status = status
        self._on_open = on_open
        self.reopening = Reopening(period_seconds, status.timing)
        """The pause before the next channel."""
        self._changed = status.changed  # guards the stream, too
        self._observe = observe
        self._log = _log.bind(endpoint=str(status.endpoint))
        self._stream: grpc.CallIterator[pb.OpenChannelResponse] | None = None

    @property
    def closed(self) -> bool:
        """Whether no channel will ever be opened again."""
        return self._stopping.is_set()

    def open(self) -> None:
        """Holds a channel open from now on."""
        with self._changed:
            if self._thread.ident is None and not self.closed:
                self.start()

    def close(self) -> None:
        """Ends the channel and joins the thread."""
        with self._changed:
            self.cancel()
            self._end_stream()
            self._changed.notify_all()
        self.join()

    def gone(self, channel_id: str | None) -> None:
        """Ends this channel, because the name server does not know it, and opens another one."""
        with self._changed:
            if channel_id is not None and self._status.channel_id == channel_id:
                self._status.channel_id = None
                self._end_stream()

    def _run_channel(self) -> float:
        """Opens a channel and reads it to its end. Returns the seconds to the next one."""
        shutting_down = False
        try:
            ended_because, shutting_down, was_open = self._read()
            if not self.closed:
                self._status.channel_ended(ended_because, was_open=was_open)
        except Exception:  # noqa: BLE001 - logged, and another channel is opened
            # Without a channel this name server would drop the broker for good.
            self._log.exception("channel_failed")
        return self.reopening.next_wait(shutting_down=shutting_down)

    def _read(self) -> tuple[str, bool, bool]:
        """Opens a channel and reads its events to the end.

        Returns why it ended, whether for long, and whether it was open.
        """
        request, was_open = pb.OpenChannelRequest(holder=self._holder), False
        silent = threading.Timer(OPENED_SECONDS, self._end_stream)
        silent.daemon = True
        try:
            with self._observe(request) as metadata:
                with self._changed:
                    if self.closed:
                        return "closed by the agent", False, False
                    self._stream = stream = self._stub.OpenChannel(request, metadata=metadata)
                silent.start()
                for response in stream:
                    self._stopping.wait(EVENT_PAUSE_SECONDS)
                    match response.WhichOneof("event"):
                        case "closing":
                            reasons, reason = pb.ChannelClosing.Reason, response.closing.reason
                            # A newer name server may have other reasons.
                            name = reasons.Name(reason) if reason in reasons.values() else f"reason {reason}"
                            return f"closed by the name server: {name}", reason == reasons.REASON_SHUTDOWN, was_open
                        case "opened" if was_open:
                            return "the name server opened it twice", False, was_open
                        case "opened":
                            silent.cancel()
                            was_open = True
                            self._status.channel_opened(response.opened.channel_id)
                            self._log.info("channel_opened")
                            self._status.event(NamesrvEvent.KIND_CHANNEL_OPENED)
                            self._on_open()
                        case "order_topic_config_changed":
                            self._status.news()
                        case "min_broker_id_changed":
                            self._lowest_changed(response.min_broker_id_changed)
                        case other:
                            self._log.debug("channel_event_passed_over", channel_event=other)
        except grpc.RpcError as error:
            return str(RichError.of(error)), False, was_open
        finally:
            silent.cancel()
            with self._changed:
                self._end_stream()
                self._stream = self._status.channel_id = None
        return "ended by the name server", False, was_open

    def _lowest_changed(self, lowest: pb.MinBrokerIdChanged) -> None:
        name, addr = lowest.broker_name[:MAX_NAME_LENGTH], lowest.min_broker_addr[:MAX_ADDRESS_LENGTH]
        detail = f"{name}: {lowest.min_broker_id} at {addr}"
        self._status.event(NamesrvEvent.KIND_MIN_BROKER_ID_CHANGED, detail)
        self._log.info("min_broker_id_changed", lowest=lowest.min_broker_id, addr=addr)

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()  # type: ignore[no-untyped-call]


def connection_options(keepalive_seconds: float) -> Options:
    """Of a connection to a name server, which is pinged after so long a silence."""
    settings = ConnectionSettings(
        connect_seconds=CONNECT_SECONDS,
        # Below the agent's own backoff, so each attempt really connects and does not repeat gRPC's last failure.
        first_backoff_seconds=0.1,
        longest_backoff_seconds=1.0,
        keepalive_seconds=keepalive_seconds,
        keepalive_timeout_seconds=5.0,  # longer than a pause of a busy name server
    )
    return (*settings.options, ("grpc.keepalive_permit_without_calls", 1))
