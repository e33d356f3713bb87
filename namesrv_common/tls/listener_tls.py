"""TLS of a listener: certificates that are read again when they change."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from namesrv_common.files.watched_file import WatchedFile
from namesrv_common.tls.certificates import (
    CertificateError,
    KeyPair,
    Validity,
    identities,
    names_in,
    read_authorities,
    read_key_pair,
)

ENDS_SOON_DAYS = 14
"""Reading a certificate that ends within this time logs a warning."""

CertificateCheck = Callable[[bytes, bytes, bytes | None], None]
"""Raises ValueError if a server cannot use certificate, key and clients' authorities, in PEM."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShownFiles:
    """What a listener shows, and what it checks clients' certificates with."""

    pair: KeyPair
    validity: Validity
    """When the certificate is valid."""
    authorities: bytes | None
    """PEM, or None if clients are not asked for certificates."""
    names: frozenset[str]
    """URIs and DNS names of the certificate; its common names if it has neither."""
    configuration: grpc.ServerCertificateConfiguration
    """The same, for grpcio."""


class ListenerTls(WatchedFile[ShownFiles]):
    """Credentials of a listener. TLS 1.2 and 1.3, which is gRPC's own rule.

    Each new connection gets the present files. Open connections keep what they began with. Files that cannot be used
    change nothing, which one log line says. Without calls of ``refreshed``, changes are seen at new connections only.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_authorities: Path | None = None,
        *,
        check: CertificateCheck | None = None,
    ) -> None:
        """Reads the PEM files. Raises CertificateError, with the reason, if they cannot be used.

        Args:
            certificate: The certificate that the listener shows, and the intermediate ones that signed it.
            key: The private key, not encrypted.
            client_authorities: What clients' certificates are checked with. None asks for none.
            check: What the server that shows them refuses although OpenSSL takes it.
        """
        self._certificate, self._key, self._client_authorities = certificate, key, client_authorities
        self._check = check
        files = [path for path in (certificate, key, client_authorities) if path is not None]
        self._names = [str(path) for path in files]
        super().__init__(
            files, self._read, on_reloaded=lambda shown: self._tell("tls_reloaded", shown.validity), on_kept=self._kept
        )
        self._tell("tls_loaded", self.value.validity)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for a port of any gRPC server; each is for one port."""
        given, first = self.refreshed()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC, in a thread of its own, for each new connection; None leaves everything as it is."""
            nonlocal given
            generation, loaded = self.refreshed()
            if generation == given:
                return None
            given = generation
            return loaded.configuration

        return grpc.dynamic_ssl_server_credentials(
            first.configuration,
            changed,  # type: ignore[arg-type]  # the stubs do not know of the None that gRPC documents
            require_client_authentication=self._client_authorities is not None,
        )

    def _read(self) -> ShownFiles:
        pair = read_key_pair(self._certificate, self._key)
        authorities = read_authorities(self._client_authorities) if self._client_authorities else None
        if self._check is not None:
            try:
                self._check(pair.certificate, pair.key, authorities)
            except ValueError as error:
                raise CertificateError(f"{self._certificate}: {error}") from error
        configuration = grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authorities)
        names = frozenset(identities(names_in(pair.certificate)))
        return ShownFiles(pair, pair.validity, authorities, names, configuration)

    def _kept(self, error: ValueError) -> None:
        _log.error("tls_files_refused", problem=str(error), in_force="those read before", files=self._names)

    def _tell(self, event: str, validity: Validity) -> None:
        now = dt.datetime.now(dt.UTC)
        problem = validity.problem(now)
        fields = {"files": self._names, "not_after": validity.not_after.isoformat()}
        _log.info(event, **fields)
        if problem is not None:
            _log.warning("tls_certificate_not_valid", problem=f"the certificate {problem}", **fields)
        elif validity.not_after - now < dt.timedelta(days=ENDS_SOON_DAYS):
            _log.warning("tls_certificate_ends_soon", **fields)
