"""The HTTP listener for operators: metrics, and whether the program is alive and ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, disable_created_metrics, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable

SOCKET_SECONDS = 5.0
"""How long a caller may take to send its request: a thread is held for it."""

MAX_CALLERS = 32
"""Most requests at once; more are turned away, so that slow callers cannot take all threads."""

Check = Callable[[], str | None]
"""None if all is well, otherwise what is wrong."""


def metrics_registry() -> CollectorRegistry:
    """A registry with the process's own figures: memory, CPU time, open files, garbage collections."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of all series, and Prometheus does not ask for them
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class _Handler(WSGIRequestHandler):
    timeout = SOCKET_SECONDS

    def log_message(self, *_: object) -> None:
        """Logs nothing, because scrapes come all the time."""


class _Server(ThreadingWSGIServer):
    daemon_threads = True
    _free = threading.BoundedSemaphore(MAX_CALLERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """A caller that went away is no error of ours."""


class MetricsServer:
    """Answers ``/metrics``, ``/healthz`` (alive) and ``/readyz`` (ready) from a thread of its own."""

    def __init__(self, listen: Endpoint, registry: CollectorRegistry, alive: Check, ready: Check) -> None:
        """Takes the port; answers once started.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        check_bindable(listen)
        metrics = make_wsgi_app(registry)
        checks = {"/healthz": alive, "/readyz": ready}

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path == "/metrics":
                return metrics(environ, start_response)  # type: ignore[no-any-return]
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
            self._thread.join(SOCKET_SECONDS)
        self._server.server_close()
