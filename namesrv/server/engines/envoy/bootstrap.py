"""Envoy's configuration, with the bounds that a listener needs that the world may reach.

Each bound was measured under attack; docs/limits.md says what a client sees of it.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, Literal

from pyvoy import PyvoyServer

from groundwork.connections.listener_tls import ListenerFiles
from namesrv.config.limits import MAX_METADATA_BYTES
from namesrv.config.settings import NamesrvSettings
from namesrv.server.engines.envoy.admin import ADMIN_SOCKET
from namesrv.server.engines.envoy.inside import CERTIFICATES_FOLDER

CONNECTION_BUFFER_BYTES = 64 * 1024
"""Bytes that Envoy holds for a connection that does not read, in each direction, before it makes us wait."""

STREAM_WINDOW_BYTES = 256 * 1024
CONNECTION_WINDOW_BYTES = 1024 * 1024
"""Bytes that a client may send before we have taken any of them; Envoy's own defaults are 16 MiB and more."""

MAX_HEADERS_KIB = 2 * MAX_METADATA_BYTES // 1024
"""Headers that Envoy takes. Between our limit and this one a call gets a status that says what is wrong."""

WHOLE_REQUEST_SECONDS = 30
"""How long a request may take to arrive: one that never ends must not hold what it has sent."""

HEADERS_SECONDS = 10
"""How long its headers may take."""

HANDSHAKE_SECONDS = 10
"""How long TLS may take to agree."""

IDLE_CONNECTION_SECONDS = 300
"""How long a connection without a call is kept; a client opens the next one by itself."""

DESCRIPTORS_KEPT_BACK = 256
"""File descriptors that are not for connections: files, threads, what Envoy needs itself."""

MAX_YOUNG_RESETS = 100
"""A connection is closed once more than half of its first so many calls were cancelled within a second."""

MAX_ENVOY_THREADS = 2
"""More of them read HTTP/2 faster than one event loop answers."""

_CALL_PATH = "^/[A-Za-z0-9_.]+/[A-Za-z0-9_]+$"
"""Envoy refuses other paths: pyvoy would never answer one that is not UTF-8."""

_TYPES = "type.googleapis.com/envoy."
_HTTP = f"{_TYPES}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_TLS = f"{_TYPES}extensions.transport_sockets.tls.v3."
_CONNECTIONS_MONITOR = f"{_TYPES}extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"

Config = dict[str, Any]


def threads() -> int:
    """How many threads of Envoy read and write."""
    return min(MAX_ENVOY_THREADS, len(os.sched_getaffinity(0)))


def max_connections() -> int:
    """What the limit on file descriptors leaves for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft - DESCRIPTORS_KEPT_BACK)


def bootstrap(
    settings: NamesrvSettings, address: tuple[str, int], folder: Path, application: str, *, shares_port: bool = False
) -> Config:
    """Envoy's configuration.

    Args:
        settings: The name server's.
        address: A host and a port.
        folder: A private one.
        application: What Envoy runs: a module and an attribute of it.
        shares_port: Whether other processes of this name server listen on the same port.
    """
    host, port = address
    files = settings.listener_files()
    chain: Config = {"filters": [{"name": "http", "typed_config": _http(settings, application)}]}
    if files is not None:
        chain["transport_socket"] = {"name": "tls", "typed_config": _tls(files, folder)}
        chain["transport_socket_connect_timeout"] = _seconds(HANDSHAKE_SECONDS)
    listener = {
        "name": "grpc",
        "address": {"socket_address": {"address": host, "port_value": port}},
        "filter_chains": [chain],
        # Otherwise a second server could take the same port silently.
        "enable_reuse_port": shares_port,
        # With one socket for all threads, one of them might get every connection.
        "connection_balance_config": {"exact_balance": {}},
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
    }
    return {
        "node": {"id": "namesrv", "cluster": "namesrv"},  # asked for where there are certificates
        "admin": {"address": {"pipe": {"path": str(folder / ADMIN_SOCKET), "mode": 0o600}}},
        "static_resources": {"listeners": [listener]},
        "layered_runtime": {"layers": [{"name": "fixed", "static_layer": _runtime()}]},
        "overload_manager": {"resource_monitors": [_connections_monitor()]},
    }


def _runtime() -> Config:
    return {
        # Each reset call has cost a task by the time the reset is known; taken one at a time, calls wait for their
        # turn.
        "http.max_requests_per_io_cycle": 1,
        "overload.premature_reset_total_stream_count": MAX_YOUNG_RESETS,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
    }


def _connections_monitor() -> Config:
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {"@type": _CONNECTIONS_MONITOR, "max_active_downstream_connections": max_connections()},
    }


def _http(settings: NamesrvSettings, application: str) -> Config:
    keepalive = {
        "interval": _millis(settings.keepalive_time_millis),
        "timeout": _millis(settings.keepalive_timeout_millis),
    }
    config: Config = {
        "@type": _HTTP,
        "stat_prefix": "grpc",
        "codec_type": "HTTP2",
        "http_filters": [_call_paths_only(), _application(application, asyncio_debug=settings.asyncio_debug)],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"]}]},
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        # Otherwise a client could say by a header who it is.
        "use_remote_address": True,
        "skip_xff_append": True,
        "max_request_headers_kb": MAX_HEADERS_KIB,
        "request_headers_timeout": _seconds(HEADERS_SECONDS),
        "request_timeout": _seconds(WHOLE_REQUEST_SECONDS),
        # Channels and watches may be silent for as long as they like.
        "stream_idle_timeout": _seconds(0),
        "drain_timeout": _seconds(1),
        "common_http_protocol_options": {"idle_timeout": _seconds(IDLE_CONNECTION_SECONDS)},
        "http2_protocol_options": {
            "max_concurrent_streams": settings.max_concurrent_streams,
            "initial_stream_window_size": STREAM_WINDOW_BYTES,
            "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
            "connection_keepalive": keepalive,
        },
    }
    if settings.tls_client_ca is not None:
        config["forward_client_cert_details"] = "SANITIZE_SET"
        config["set_current_client_cert_details"] = {"cert": True}
    return config


def _call_paths_only() -> Config:
    permission = {"url_path": {"path": {"safe_regex": {"regex": _CALL_PATH}}}}
    policy = {"permissions": [permission], "principals": [{"any": True}]}
    rules = {"action": "ALLOW", "policies": {"calls": policy}}
    return {
        "name": "paths",
        "typed_config": {"@type": f"{_TYPES}extensions.filters.http.rbac.v3.RBAC", "rules": rules},
    }


def _application(application: str, *, asyncio_debug: bool) -> Config:
    """The filter that runs us, as pyvoy configures it. One worker thread: two would be two event loops."""
    loop: Literal["asyncio", "uvloop"] = "asyncio" if asyncio_debug else "uvloop"  # uvloop names no slow callback
    config = PyvoyServer(application, worker_threads=1, lifespan=True, loop=loop).get_envoy_config()
    listener = config["static_resources"]["listeners"][0]
    filters: list[Config] = listener["filter_chains"][0]["filters"][-1]["typed_config"]["http_filters"]
    return filters[-1]


def _tls(files: ListenerFiles, folder: Path) -> Config:
    """TLS 1.2 and 1.3."""
    common: Config = {
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificate_sds_secret_configs": [_where_secret_is("pair", folder)],
    }
    if files.client_authorities is not None:
        common["validation_context_sds_secret_config"] = _where_secret_is("authorities", folder)
    return {
        "@type": f"{_TLS}DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": files.client_authorities is not None,
    }


def _where_secret_is(name: str, folder: Path) -> Config:
    source = {"path_config_source": {"path": str(folder / f"{name}.json")}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def secrets(files: ListenerFiles, folder: Path) -> dict[str, Config]:
    """The files in which Envoy finds the paths of certificates, by their names.

    They hold no key. Envoy reads the certificates again when something is moved into a folder of ours; we do that after
    we have found them good.
    """
    watched = {"watched_directory": {"path": str(folder / CERTIFICATES_FOLDER)}}
    pair = {"certificate_chain": _file(files.certificate), "private_key": _file(files.key), **watched}
    found = {"pair.json": _secret("pair", {"tls_certificate": pair})}
    if files.client_authorities is not None:
        context = {"trusted_ca": _file(files.client_authorities), **watched}
        found["authorities.json"] = _secret("authorities", {"validation_context": context})
    return found


def _secret(name: str, content: Config) -> Config:
    return {"resources": [{"@type": f"{_TLS}Secret", "name": name, **content}]}


def _file(path: Path) -> Config:
    return {"filename": str(path.absolute())}


def _seconds(seconds: int) -> str:
    return f"{seconds}s"


def _millis(millis: int) -> str:
    return f"{millis / 1000:.3f}s"
