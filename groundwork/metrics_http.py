"""The HTTP listener of metrics and health: /metrics, /healthz and /readyz."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, BinaryIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, disable_created_metrics, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from groundwork.endpoints import Endpoint
from groundwork.grpcio_server import check_bindable
from groundwork.places import PlaceRules, Places

if TYPE_CHECKING:
    from groundwork.tracing import Telemetry


# The HTTP listener for operators: metrics, and whether the program is alive and ready.

ASKING = PlaceRules(most=64, most_by_address=16, request_seconds=5.0, patience_seconds=1.0)
"""Connections whose request has not come yet, or is one for health, which is answered at once."""
SCRAPES = PlaceRules(most=8, most_by_address=4, request_seconds=5.0, patience_seconds=1.0)
"""Connections that have asked for the metrics; more are turned away with 503."""

MAX_REQUEST_BYTES = 16 * 1024
"""Largest request: Python's own limits are 100 headers of 64 KiB each, which every connection could hold."""

METRICS = "/metrics"

WAITING_CONNECTIONS = 128
"""Connections that the kernel keeps until they are taken: beyond that a newcomer tries again a second later."""

FULL_PAUSE_SECONDS = 0.1
"""Pause after a connection that could not be taken: without file descriptors another try would fail at once."""

Check = Callable[[], str | None]
"""None if all is well, otherwise what is wrong."""


def metrics_registry() -> CollectorRegistry:
    """A registry with the process's own figures: memory, CPU time, open files, garbage collections."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of all series, and Prometheus does not ask for them
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class _ShortRequest:
    """The lines of a request, up to ``MAX_REQUEST_BYTES`` of them."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines
        self._left = MAX_REQUEST_BYTES

    def readline(self, most: int) -> bytes:
        """Returns the next line. Raises HTTPException if the request is too long."""
        line = self._lines.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException(f"the request has more than {MAX_REQUEST_BYTES} bytes")
        return line

    def close(self) -> None:
        self._lines.close()


class _Handler(WSGIRequestHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _ShortRequest(self.rfile)

    def parse_request(self) -> bool:
        """The request is there when its headers are: none that is answered here has a body."""
        if not super().parse_request():
            return False
        if self.path.partition("?")[0] == METRICS and not self.server.begin_scrape(self.connection):
            self.send_response_only(503)
            self.send_header("Retry-After", "1")
            self.end_headers()
            return False
        return True

    def log_message(self, *_: object) -> None:
        """Logs nothing, because scrapes come all the time."""


class _Server(ThreadingWSGIServer):
    """A thread for each connection that has a place. Whose time is over, or who is in the way, is cut."""

    daemon_threads = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.Lock()
        self._asking: Places[socket.socket] = Places(ASKING, time.monotonic)
        self._scrapes: Places[socket.socket] = Places(SCRAPES, time.monotonic)
        super().__init__(*args, **kwargs)

    def begin_scrape(self, request: socket.socket) -> bool:
        """A connection has asked for the metrics, and no longer is in the way of others. Whether it gets them."""
        with self._lock:
            self._asking.leave(request)
            admitted, victim = self._scrapes.admit(request, request.getpeername()[0])
            self._scrapes.asked(request)
        if victim is not None:
            _cut(victim)
        return admitted

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(FULL_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            admitted, victim = self._asking.admit(request, client_address[0])
        if victim is not None:
            _cut(victim)
        if not admitted:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._asking.leave(request)
                self._scrapes.leave(request)

    def service_actions(self) -> None:
        """Called twice a second and after each connection."""
        super().service_actions()
        with self._lock:
            late = [*self._asking.late(), *self._scrapes.late()]
        for request in late:
            _cut(request)

    def handle_error(self, *_: object) -> None:
        """A caller that went away is no error of ours."""


def _cut(request: socket.socket) -> None:
    """Its thread wakes up, whether it reads or writes, and closes it."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _OneAtATime:
    """Renders the metrics, which holds the interpreter: one at a time, after a pause as long as the last took.

    So scrapes without an end take half of its time at the most.
    """

    def __init__(self, metrics: Callable[[dict[str, Any], Any], Iterable[bytes]]) -> None:
        self._metrics = metrics
        self._turn = threading.Lock()
        self._free_at = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not self._turn.acquire(timeout=SCRAPES.request_seconds):
            start_response("503 Service Unavailable", [("Retry-After", "5")])
            return [b"others are asking for the metrics\n"]
        try:
            time.sleep(max(0.0, self._free_at - time.monotonic()))
            begun = time.monotonic()
            answer = self._metrics(environ, start_response)
            self._free_at = 2 * time.monotonic() - begun
            return answer
        finally:
            self._turn.release()


class MetricsServer:
    """Answers ``/metrics``, ``/healthz`` (alive) and ``/readyz`` (ready) from a thread of its own."""

    def __init__(self, listen: Endpoint, registry: CollectorRegistry, alive: Check, ready: Check) -> None:
        """Takes the port; answers once started.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        check_bindable(listen)
        metrics = _OneAtATime(make_wsgi_app(registry))
        checks = {"/healthz": alive, "/readyz": ready}

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path == METRICS:
                return metrics(environ, start_response)
            check = checks.get(path)
            problem = "there is only /metrics, /healthz and /readyz" if check is None else check()
            status = "404 Not Found" if check is None else "503 Service Unavailable" if problem else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{problem or 'ok'}\n".encode()]

        self._server = make_server(listen.host, listen.port, application, _Server, handler_class=_Handler)
        self.endpoint = Endpoint(listen.host, self._server.server_port)
        """Where it listens."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Starts to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Gives the port back. Requests under way are not waited for."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join(SCRAPES.request_seconds)
        self._server.server_close()


# Ways for metrics and traces to leave a program: metrics over HTTP, traces to a collector, both, or none.

TELEMETRY_SECONDS = 10.0
"""Deadline of ``Exports.stop``, above what the collector and a scrape may take."""


class Exports:
    """A program's listener for metrics and its exporter of traces, ended together."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        """Takes the exporter to a collector; None: there is none."""
        self.telemetry = telemetry
        self.listener: MetricsServer | None = None
        """The listener that answers scrapes; None: there is none."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where metrics are; None if nowhere."""
        return self.listener.endpoint if self.listener else None

    def start(self) -> None:
        """Starts to answer."""
        if self.listener is not None:
            self.listener.start()

    def stop(self) -> None:
        """Sends what is left, for a few seconds at most, and gives the port back. Blocks for as long."""
        if self.telemetry is not None:
            self.telemetry.stop()
        if self.listener is not None:
            self.listener.stop()
