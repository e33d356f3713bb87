"""Real processes of ours, started for a test: ready when they say so, ended by the test that started them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TextIO, TypeVar, cast

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2
from namesrv_api.v1.admin_service_pb2_grpc import AdminServiceStub
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub
from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsRequest, GetDiagnosticsResponse
from namesrv_internal.v1.diagnostics_service_pb2_grpc import DiagnosticsServiceStub

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.engines import NATIVE, require_native
from tests.support.patience import FACTOR, TIMEOUT
from tests.support.programs.forked_programs import ForkedProgram, can_fork

BIN = Path(sys.executable).parent
TOPICS = Path(__file__).parents[3] / "examples" / "demo" / "topics.json"
_LOWEST_PORT, _HIGHEST_PORT = 15_000, 32_000
_END_SECONDS = 3 * TIMEOUT
START_SECONDS = 2 * TIMEOUT
"""How long a process may take to say that it is ready, on a busy machine."""
MEASURED = "COVERAGE_PROCESS_CONFIG" in os.environ
"""Whether coverage is measured: a process writes what it ran when it ends by itself, and not when it is killed."""

ValueT = TypeVar("ValueT")


def eventually(
    probe: Callable[[], ValueT], accept: Callable[[ValueT], bool] = bool, within_seconds: float = 30.0
) -> ValueT:
    """Asks again until the answer is accepted; fails with the last answer after the time, longer on a busy machine."""
    within_seconds *= FACTOR
    deadline = time.monotonic() + within_seconds
    while True:
        value = probe()
        if accept(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s; last seen: {value!r}")
        threading.Event().wait(0.01)  # a pause between two questions, not a wait for their answer


def unused_port() -> int:
    """A port of loopback that is free, with the one above and the one two below, which RocketMQ's brokers take as well.

    Below those that the system gives to outgoing connections: programs bind it seconds later, and some connection
    would have it by then.
    """
    while True:
        port = _LOWEST_PORT + secrets.randbelow(_HIGHEST_PORT - _LOWEST_PORT)
        try:
            for one in (port, port + 1, port - 2):
                socket.create_server(("127.0.0.1", one)).close()
        except OSError:
            continue
        return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody takes connections at a port."""
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex((host, port)) == 0


def addrs_of(group: route_data_pb2.BrokerData) -> dict[int, str]:
    """The addresses of a group by broker id."""
    return {broker.broker_id: broker.broker_addr for broker in group.broker_addrs}


def sample(pid: int) -> dict[str, int]:
    """Resident memory in KiB, now and at its peak, threads and open files of a process."""
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
    status = {name: value.strip() for name, _, value in rows}
    return {
        "pid": pid,
        "rss_kib": int(status["VmRSS"].split()[0]),
        "peak_kib": int(status["VmHWM"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def cpu_seconds(*pids: int) -> float:
    """CPU time of processes so far, user and system, all threads, also those that have ended.

    Linux gives the clock of a process this number (clock_getcpuclockid(3)). It counts nanoseconds, not ticks.
    """
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


class Process:
    """A program that logs JSON lines to standard error."""

    are_forked: ClassVar[bool] = False
    """Whether programs of ours are forked from a process that has imported them. Tests that start many set it; what is
    measured or shown runs as its users run it."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str] | None = None,
        descriptors: tuple[int, ...] = (),
        *,
        folder: Path | None = None,
        pipes: bool = False,
        output: int | None = None,
    ) -> None:
        """Starts it.

        Args:
            arguments: The program and its arguments.
            environment: Variables in addition to those of this process.
            descriptors: Descriptors that it inherits.
            folder: Where it runs, if that is not where the tests do.
            pipes: Whether ``pipes`` are to be its standard input and output.
            output: A descriptor for its standard output, if that is neither a pipe nor that of the tests.
        """
        self.pipes: tuple[TextIO, ...] = ()
        self.lines: list[dict[str, Any]] = []
        self._texts: list[str] = []
        # What an environment asks for may be read by the imports.
        if self.are_forked and can_fork(arguments) and not (environment or descriptors or folder or pipes):
            self._popen: ForkedProgram | subprocess.Popen[str] = ForkedProgram(arguments, output)
        else:
            self._popen = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE if pipes else None,
                stdout=subprocess.PIPE if pipes else output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **(environment or {})},
                cwd=folder,
                pass_fds=descriptors,
            )
            if pipes:
                self.pipes = cast("tuple[TextIO, ...]", (self._popen.stdin, self._popen.stdout))
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def raw(self) -> str:
        """All that it has said so far."""
        return "".join(self._texts)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event so far."""
        return [line for line in list(self.lines) if line.get("event") == name]

    def wait_for(self, event: str) -> dict[str, Any]:
        """Waits until the process has logged an event; returns its first line."""
        return self._wait_until_it_says(event, lambda: self.events(event), START_SECONDS)[0]

    def wait_for_text(self, text: str, within_seconds: float = START_SECONDS) -> None:
        """Waits until the process, which need not be one of ours, has said something."""
        self._wait_until_it_says(text, lambda: text in self.raw, within_seconds)

    def _wait_until_it_says(self, what: str, find: Callable[[], ValueT], within_seconds: float) -> ValueT:
        def seen() -> ValueT:
            found = find()
            if not found and self._popen.poll() is not None:
                self._reader.join(TIMEOUT)
                found = find()  # its last lines may have come only now
                assert found, f"ended with {self._popen.returncode} before {what}:\n{self.raw}"
            return found

        try:
            return eventually(seen, within_seconds=within_seconds)
        except BaseException:
            self.__exit__()  # nobody else ends one whose constructor waits
            raise

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kills the process, as a crash would."""
        self.signal(signal.SIGKILL)
        self._popen.wait(TIMEOUT)

    def terminate(self, within_seconds: float = 20.0) -> int:
        """Asks the process to end, waits, and returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(within_seconds)

    def wait(self, within_seconds: float = 20.0) -> int:
        """Waits until the process has ended and all that it said is there; returns its exit code."""
        code = self._popen.wait(within_seconds)
        self._reader.join(TIMEOUT)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self.signal(signal.SIGCONT)
            if MEASURED:
                self.signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(TIMEOUT)
            self.signal(signal.SIGKILL)
        self._popen.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        assert self._popen.stderr is not None
        for pipe in self.pipes:
            pipe.close()
        # A reader that still waits has the file's lock: to close it would wait for that, and no signal would end this.
        if not self._reader.is_alive():
            self._popen.stderr.close()

    def _read(self) -> None:
        assert self._popen.stderr is not None
        for text in self._popen.stderr:
            self._texts.append(text)
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                self.lines.append(line)


def ended(
    arguments: list[str], environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A program that has ended, killed after a minute, and what it said."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
        Process(arguments, environment, folder=folder, output=output.fileno()) as process,
    ):
        code = process.wait(_END_SECONDS)
        output.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), process.raw)


class NamesrvProcess(Process):
    """A name server on a free port of loopback, or on the port given."""

    program: ClassVar[tuple[str, ...]] = (str(BIN / "namesrv"),)

    def __init__(
        self, *arguments: str, engine: str = NATIVE, port: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        if engine == NATIVE:
            require_native()
        listen = f"127.0.0.1:{port}"
        program = [*self.program, "serve", "--listen", listen, "--engine", engine, "--log-format", "json"]
        # Most tests are not about the time after a start; those that are say so in their arguments, which win.
        super().__init__([*program, "--warm-up-millis", "0", *arguments], environment)
        self.endpoint = Endpoint.parse(str(self.wait_for("namesrv_started")["listen"]))

    @contextlib.contextmanager
    def connect(self) -> Iterator[Client]:
        """A connection of its own to this name server."""
        # Otherwise all clients of this process would share one connection, and its flow control; and the slower the
        # machine, the more gRPC buffers for a reader that stalls.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(str(self.endpoint), options) as connection:
            yield Client(connection)


class OpenedChannel:
    """A channel that a test holds."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.id = str(self.next_event().opened.channel_id)

    def next_event(self) -> registration_service_pb2.OpenChannelResponse:
        """The next event; waits for it."""
        event: registration_service_pb2.OpenChannelResponse = next(self._call)
        return event

    def close(self) -> None:
        """Ends the stream, as a holder that goes away does."""
        self._call.cancel()


class Client:
    """The calls of a name server, with a deadline each."""

    TIMEOUT = 20.0

    def __init__(self, connection: grpc.Channel) -> None:
        self.connection = connection
        self.registration = RegistrationServiceStub(connection)
        self.routes = RouteServiceStub(connection)
        self.admin = AdminServiceStub(connection)
        self.diagnostics = DiagnosticsServiceStub(connection)

    def route(self, topic: str = "TopicTest") -> route_data_pb2.TopicRouteData | None:
        """A topic's route; None if the name server says that there is none."""
        request = route_service_pb2.GetTopicRouteRequest(topic=topic)
        try:
            return self.routes.GetTopicRoute(request, timeout=self.TIMEOUT).route
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise

    def told_diagnostics(self) -> GetDiagnosticsResponse:
        """The name server's figures about its process."""
        return self.diagnostics.GetDiagnostics(GetDiagnosticsRequest(), timeout=self.TIMEOUT)

    def addrs(self, topic: str = "TopicTest") -> dict[int, str]:
        """Addresses of the topic's first broker group; empty if there is no route."""
        route = self.route(topic)
        return addrs_of(route.broker_datas[0]) if route else {}

    def open_channel(self) -> OpenedChannel:
        """Opens a channel."""
        return OpenedChannel(self.registration.OpenChannel(registration_service_pb2.OpenChannelRequest(holder="test")))

    def failure(self, path: str, request: Message | bytes) -> RichError:
        """The error that a call or a stream ends with, before its first message."""
        sent = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            answer = self.connection.unary_unary(path, None, None)(sent, timeout=self.TIMEOUT)
        except grpc.RpcError as error:
            return RichError.of(error)
        raise AssertionError(f"no error, but {answer!r}")

    def snapshot(self) -> list[route_service_pb2.StreamRouteSnapshotResponse]:
        """All messages of a snapshot."""
        return list(
            self.routes.StreamRouteSnapshot(route_service_pb2.StreamRouteSnapshotRequest(), timeout=3 * TIMEOUT)
        )
