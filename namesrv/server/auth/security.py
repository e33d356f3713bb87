"""The name server's certificates and permits: read at the start, and again when their files change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from groundwork.auth.permits import Permits
from groundwork.auth.permits_file import reloaded_permits, warn_of_permits
from groundwork.connections.channels import ClientFiles, ClientSecurity
from groundwork.connections.listener_tls import ListenerTls
from groundwork.files.hot_reload import CHECK_SECONDS, HotReloaded
from namesrv.config.settings import NamesrvSettings
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.auth.admission import Authorizer
from namesrv.server.auth.named_groups import NamedGroups

_log = structlog.get_logger(__name__)


class Security:
    """The certificates of the listener, and the permits of its callers."""

    def __init__(self, settings: NamesrvSettings) -> None:
        """Reads the files.

        Raises:
            ValueError: One of them cannot be used; the text names it and says why.
        """
        self.tls: ListenerTls | None = settings.listener_tls()
        """None without TLS."""
        self.on_permits_reloaded: Callable[[], None] = lambda: None
        """Called, in any thread, when permits were read anew."""
        path = settings.permits_file
        self._permits = reloaded_permits(path, self._permits_reloaded) if path else None
        _warn(settings, self._permits)

    def doorkeeper(self, manager: RouteInfoManager | None) -> Authorizer | None:
        """The doorkeeper with the permits; None if there are none and everybody may do everything.

        Args:
            manager: Where brokers register; None where none do.
        """
        permits = self._permits
        groups = NamedGroups(manager).of if manager is not None else lambda _: ()
        return None if permits is None else Authorizer(lambda: permits.value, groups)

    async def watch(self) -> None:
        """Looks at the files every second, in a thread: reading many permits takes a while. Runs until cancelled."""
        while self.tls is not None or self._permits is not None:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self._look)

    def _permits_reloaded(self) -> None:
        self.on_permits_reloaded()  # whatever it has become meanwhile

    def _look(self) -> None:
        if self.tls is not None:
            self.tls.look()
        if self._permits is not None:
            self._permits.refreshed()


def product_env_security(settings: NamesrvSettings) -> ClientSecurity | None:
    """Credentials for calls to the product environment's name servers; None without TLS. Raises CertificateError."""
    return _as_client(
        settings,
        settings.product_env_tls_ca,
        settings.product_env_token_file,
        settings.product_env_tls_server_name,
    )


def follow_security(settings: NamesrvSettings) -> ClientSecurity | None:
    """Credentials for calls to leaders; None without TLS. Raises CertificateError."""
    return _as_client(settings, settings.follow_tls_ca, settings.follow_token_file, settings.follow_tls_server_name)


def _as_client(
    settings: NamesrvSettings, ca: Path | None, token: Path | None, name: str | None
) -> ClientSecurity | None:
    """The credentials of this name server as a client: with TLS, it shows the certificate that it listens with."""
    pair = (settings.tls_cert, settings.tls_key) if ca else (None, None)
    files = ClientFiles.of(ca, *pair, token, name)
    return None if files is None else ClientSecurity(files)


def _warn(settings: NamesrvSettings, permits: HotReloaded[Permits] | None) -> None:
    """Logs settings that are allowed but unwise."""
    if not settings.endpoint.is_loopback and not settings.listens_with_tls:
        what = "everybody on the network can read and change what is said here"
        _log.warning("listener_without_tls", listen=settings.listen, problem=what)
    if permits is not None:
        warn_of_permits(permits.value, with_tls=settings.listens_with_tls, client_ca=settings.tls_client_ca)
