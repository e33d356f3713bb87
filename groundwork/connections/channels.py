"""Connections of all our clients to gRPC servers, with or without TLS."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from groundwork.connections.certificates import CertificateError, Validity, read_authorities, read_key_pair
from groundwork.connections.renewed_channels import RenewedAioChannel, RenewedChannel
from groundwork.connections.tokens import read_token
from groundwork.endpoints import Endpoint
from groundwork.files.hot_reload import HotReloaded

Options = Sequence[tuple[str, int | str]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a client shows, and what it checks servers with. All files may be replaced at any time."""

    authorities: Path
    """Certificates that servers' are checked with, PEM."""
    certificate: Path | None = None
    """The client's own certificate, and the intermediate ones that signed it, PEM; None shows none."""
    key: Path | None = None
    """Its private key, PEM, not encrypted."""
    token: Path | None = None
    """A bearer token, in the file's only line; None sends none."""
    server_name: str | None = None
    """Name that servers' certificates must have; None: the host that is called."""

    def __post_init__(self) -> None:
        """Raises CertificateError if there is a certificate without a key, or a key without a certificate."""
        if (self.certificate is None) != (self.key is None):
            raise CertificateError("a certificate needs its key, and a key its certificate")

    @classmethod
    def of(
        cls,
        authorities: Path | None,
        certificate: Path | None = None,
        key: Path | None = None,
        token: Path | None = None,
        server_name: str | None = None,
    ) -> ClientFiles | None:
        """The files that some settings name; None, which means no TLS, if all settings are left out.

        Raises:
            CertificateError: Some are there, but not the authorities to check servers with: a token would travel
                readable.
        """
        if authorities is not None:
            return cls(authorities, certificate, key, token, server_name)
        if certificate or key or token or server_name:
            raise CertificateError("a certificate, key, token or server name is for TLS: that needs tls_ca, too")
        return None


class ClientSecurity:
    """Credentials of a client, for any number of connections. Thread-safe.

    Files that cannot be used change nothing, which one log line says.
    """

    def __init__(self, files: ClientFiles, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Reads the files.

        Raises:
            CertificateError: They cannot be used; the text says why.
        """
        self.files = files
        paths = [path for path in (files.authorities, files.certificate, files.key) if path is not None]
        self._credentials = HotReloaded(
            paths, self._load, on_reloaded=self._reloaded, on_kept=self._kept, monotonic=monotonic
        )
        self._token: HotReloaded[str] | None = None
        if files.token is not None:
            token = files.token
            self._token = HotReloaded([token], lambda: read_token(token), on_kept=self._kept, monotonic=monotonic)

    @property
    def options(self) -> Options:
        """Options that a connection needs beside the credentials."""
        name = self.files.server_name
        return () if name is None else (("grpc.ssl_target_name_override", name),)

    @property
    def validity(self) -> Validity | None:
        """When the certificate in force is valid; None if none is shown."""
        return self._credentials.value[1]

    def credentials(self) -> tuple[int, grpc.ChannelCredentials]:
        """The credentials as the files are now, and how often they have changed."""
        generation, (credentials, _) = self._credentials.refreshed()
        if self._token is not None:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.metadata_call_credentials(_AddsToken(self._token), "bearer")
            )
        return generation, credentials

    def generation(self) -> int:
        """How often the credentials have changed, looked up in microseconds."""
        return self._credentials.refreshed()[0]

    def _load(self) -> tuple[grpc.ChannelCredentials, Validity | None]:
        files = self.files
        authorities = read_authorities(files.authorities)
        if files.certificate is None or files.key is None:
            return grpc.ssl_channel_credentials(authorities), None
        pair = read_key_pair(files.certificate, files.key)
        return grpc.ssl_channel_credentials(authorities, pair.key, pair.certificate), pair.validity

    def _reloaded(self, _loaded: object) -> None:
        _log.info("the certificates of this client were read again; calls go over new connections now")

    def _kept(self, error: ValueError) -> None:
        _log.error("new certificates or a new token cannot be used, those read before stay: %s", error)


class _AddsToken(grpc.AuthMetadataPlugin):
    """Puts the token, as its file is, into the metadata of each call."""

    def __init__(self, token: HotReloaded[str]) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:  # noqa: ARG002
        callback((("authorization", f"Bearer {self._token.refreshed()[1]}"),), None)


def open_channel(
    endpoint: Endpoint | str, options: Options = (), security: ClientSecurity | None = None
) -> grpc.Channel:
    """A connection to a server, made at the first call; without security, or over TLS with certificates as they are.

    Args:
        endpoint: The server, or any target that gRPC understands.
        options: gRPC's options of the connection.
        security: What to show and what to check; None: no TLS.
    """
    target = str(endpoint)
    if security is None:
        return grpc.insecure_channel(target, options=options)

    def connect() -> tuple[int, grpc.Channel]:
        generation, credentials = security.credentials()
        return generation, grpc.secure_channel(target, credentials, options=(*options, *security.options))

    return RenewedChannel(connect, security.generation)


def open_aio_channel(
    endpoint: Endpoint | str, options: Options = (), security: ClientSecurity | None = None
) -> grpc.aio.Channel:
    """Like ``open_channel``, for the running event loop. Checking the files takes a few stat calls, once a second."""
    target = str(endpoint)
    if security is None:
        return grpc.aio.insecure_channel(target, options=options)

    def connect() -> tuple[int, grpc.aio.Channel]:
        generation, credentials = security.credentials()
        return generation, grpc.aio.secure_channel(target, credentials, options=(*options, *security.options))

    return RenewedAioChannel(connect, security.generation)
