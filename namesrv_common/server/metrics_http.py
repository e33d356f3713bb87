"""The ways of metrics, health and traces out of a program: /metrics, /healthz and /readyz over HTTP, or a collector.

The server of prometheus_client, and uvicorn, bound neither the connections of an address nor the time of a request.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from namesrv_common.endpoints import Endpoint, owner_of
from namesrv_common.printable import how_to_install
from namesrv_common.process.shutdown import LoopThread
from namesrv_common.process.systemd import bound_socket
from namesrv_common.version import __version__

if TYPE_CHECKING:
    from namesrv_common.server.tracing import Telemetry


# The HTTP listener for operators: metrics, and whether the program is alive and ready.

MAX_CONNECTIONS, MAX_CONNECTIONS_BY_ADDRESS = 128, 64
"""Connections in all, and of one address: a scraper or a probe has one. Descriptors for these are kept apart."""

REQUEST_SECONDS = 5.0
"""Time for a request, and again for its answer."""

MAX_REQUEST_BYTES = 16 * 1024
"""Largest request with its headers: browsers send 2 KiB."""

WAITING_CONNECTIONS = 16
"""Backlog of the kernel, and connections that one iteration of the event loop accepts. It is a quarter of an address's
limit, so that a caller is answered before a flood from its address closes its connection."""

_ENCODE, _CONTENT_TYPE = choose_encoder("")
_REQUEST = re.compile(rb"[A-Z]+ ([^ ?]+)[^ ]* HTTP/1\.[01]\r\n")

Check = Callable[[], str | None]
"""None if all is well, otherwise what is wrong."""


def metrics_registry() -> CollectorRegistry:
    """A registry with the process's own figures: memory, CPU time, open files, garbage collections."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of all series, and Prometheus does not ask for them
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class _MetricsPage:
    """The page of metrics. Rendering holds the interpreter, so endless scrapes cause it half of the time at most."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rendering = asyncio.Lock()
        self._begun_at = self._free_at = float("-inf")
        self._text = b""

    async def current(self) -> bytes:
        """The metrics, read after this call; calls that wait at the same time share a page."""
        asked_at = time.monotonic()
        async with self._rendering:
            if self._begun_at < asked_at:
                await asyncio.sleep(self._free_at - time.monotonic())
                begun_at = time.monotonic()
                self._text = await asyncio.to_thread(_ENCODE, self._registry)
                # Only now: a caller whose time is over is cancelled, and then there is no new page.
                self._begun_at, self._free_at = begun_at, 2 * time.monotonic() - begun_at
            return self._text


class Connections:
    """The open connections of one listener, bounded in all and by address. Belongs to the listener's event loop.

    A connection beyond a bound ends the one that was silent for longest: of its own address, or of the address that has
    most. So a caller that holds connections or floods takes them from itself, and one that asks at once has an answer.
    """

    def __init__(self, most: int, most_by_address: int) -> None:
        self._most = most
        self._most_by_address = most_by_address
        self._owners: dict[asyncio.WriteTransport, str] = {}
        """The owner of each; those that were heard last come last."""

    def heard(self, connection: asyncio.WriteTransport) -> None:
        """Counts a connection from now on, or as heard last if it was counted before."""
        self.remove(connection)
        if connection.is_closing():
            return
        owner = owner_of(str((connection.get_extra_info("peername") or ("unknown",))[0]))
        owned = Counter(self._owners.values())
        if owned[owner] >= self._most_by_address:
            self._cut_one(owner)
        elif len(self._owners) >= self._most:
            self._cut_one(owned.most_common(1)[0][0])
        self._owners[connection] = owner

    def remove(self, connection: asyncio.WriteTransport) -> None:
        """Counts a connection no more."""
        self._owners.pop(connection, None)

    def cut_all(self) -> None:
        for connection in list(self._owners):
            connection.abort()

    def _cut_one(self, owner: str) -> None:
        connection = next(other for other, its_owner in self._owners.items() if its_owner == owner)
        self.remove(connection)
        connection.abort()


class MetricsServer:
    """Answers ``/metrics``, ``/healthz`` (alive) and ``/readyz`` (ready) from a thread of its own.

    One request for each connection, so nobody holds one for long.
    """

    def __init__(self, listen: Endpoint, registry: CollectorRegistry, alive: Check, ready: Check) -> None:
        """Takes the port; answers once started. Raises OSError if it cannot have the port."""
        self._socket = bound_socket(listen)
        self.endpoint = Endpoint(listen.host, self._socket.getsockname()[1])
        """Where it listens."""
        self._page = _MetricsPage(registry)
        self._checks = {b"/healthz": alive, b"/readyz": ready}
        self._connections = Connections(MAX_CONNECTIONS, MAX_CONNECTIONS_BY_ADDRESS)
        self._runner = LoopThread("metrics")

    def start(self) -> None:
        self._runner.start()
        self._runner.run(self._serve())

    def stop(self) -> None:
        """Gives the port back. Requests under way are not waited for."""
        if self._runner.has_started:
            self._runner.stop(self._end())
        else:
            self._runner.close()
        self._socket.close()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_unless_out_of_descriptors)
        self._server = await asyncio.start_server(
            self._handle, sock=self._socket, limit=MAX_REQUEST_BYTES, backlog=WAITING_CONNECTIONS
        )

    async def _end(self) -> None:
        self._server.close()
        self._connections.cut_all()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.heard(writer.transport)
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as deadline:
                status, kind, body = await self._answer(reader, writer.transport, deadline)
                head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError):  # the peer has left, or its time was over
            pass
        finally:
            self._connections.remove(writer.transport)
            writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, connection: asyncio.WriteTransport, deadline: asyncio.Timeout
    ) -> tuple[str, str, bytes]:
        """Status, type and text. Raises EOFError: the request does not come whole."""
        text = "text/plain; charset=utf-8"
        try:
            request = _REQUEST.match(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return "431 Request Header Fields Too Large", text, b"the request is too long\n"
        if request is None:
            return "400 Bad Request", text, b"the request is no HTTP\n"
        self._connections.heard(connection)
        deadline.reschedule(asyncio.get_running_loop().time() + REQUEST_SECONDS)
        path = request[1]
        if path == b"/metrics":
            return "200 OK", _CONTENT_TYPE, await self._page.current()
        if path not in self._checks:
            return "404 Not Found", text, b"there is only /metrics, /healthz and /readyz\n"
        problem = self._checks[path]()
        return "503 Service Unavailable" if problem else "200 OK", text, f"{problem or 'ok'}\n".encode()


def _log_unless_out_of_descriptors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an error, unless a connection could not be taken: then asyncio tries again after a second."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


# Ways for metrics and traces to leave a program: metrics over HTTP, traces to a collector, both, or none.

TELEMETRY_SECONDS = 10.0
"""Deadline of ``Exports.stop``, above what the collector and a scrape may take."""


class Exports:
    """A program's listener for metrics and its exporter of traces, ended together."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        self.telemetry = telemetry
        self.listener: MetricsServer | None = None
        """The listener that answers scrapes, or None."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where metrics are; None if nowhere."""
        return self.listener.endpoint if self.listener else None

    def start(self) -> None:
        if self.listener is not None:
            self.listener.start()

    def stop(self) -> None:
        """Sends the rest for a few seconds at most, and closes the port. Blocks until then."""
        if self.telemetry is not None:
            self.telemetry.stop()
        if self.listener is not None:
            self.listener.stop()


# The decision whether traces go to an OpenTelemetry collector, as the standard variables OTEL_... say. OpenTelemetry is
# loaded only if they ask for it.

OTEL_EXTRA = "otel"
"""The extra that brings the needed packages."""


def open_telemetry(service: str, environ: Mapping[str, str], *, traces_follow_callers: bool) -> Telemetry | None:
    """The exporter of spans; None if the variables ask for nothing.

    Args:
        service: Name of the program, unless OTEL_SERVICE_NAME names it.
        traces_follow_callers: Without OTEL_TRACES_SAMPLER, only calls whose callers trace them have spans: for a
            server of many short calls. Otherwise all have, as the standard says.

    Raises:
        ValueError: The variables cannot be followed, or a package is missing; the text says what to do.
    """
    if not are_traces_wanted(environ):
        return None
    try:
        tracing = import_module("namesrv_common.server.tracing")
        telemetry: Telemetry = tracing.Telemetry(service, __version__, traces_follow_callers=traces_follow_callers)
    except ModuleNotFoundError as error:
        problem = f"variables OTEL_... ask for an export, and {error.name} is missing; {how_to_install(OTEL_EXTRA)}"
        raise ValueError(problem) from error
    except ValueError as error:
        raise ValueError(f"a variable OTEL_... cannot be used: {error}") from error
    return telemetry


def are_traces_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for traces: by the exporter otlp, or by an endpoint with no exporter named.

    Raises:
        ValueError: They ask for something that these programs do not have; the text names the variable.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter not in ("", "otlp", "none"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}, must be otlp or none")
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or any(environ.get(name) for name in endpoints)):
        return False
    protocols = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in protocols if environ.get(name, "").strip()), None)
    if name is not None and (protocol := environ[name].strip()) != "grpc":
        raise ValueError(f"{name} is {protocol!r}, must be grpc: collectors take it at port 4317")
    return True
