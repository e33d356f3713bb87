"""TLS of a listener: certificates that are read again when they change."""

from __future__ import annotations

import datetime as dt
import time
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
class ListenerFiles:
    """The PEM files of a listener."""

    certificate: Path
    """The certificate that it shows, and the intermediate ones that signed it."""
    key: Path
    """The private key, not encrypted."""
    client_authorities: Path | None = None
    """What clients' certificates are checked with; None asks for none."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_authorities) if path is not None)


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
        files: ListenerFiles,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        check: CertificateCheck | None = None,
    ) -> None:
        """Reads the files. Raises CertificateError, with the reason, if they cannot be used.

        Args:
            check: What the server that shows them refuses although OpenSSL takes it.
        """
        self._files = files
        self._check = check
        super().__init__(
            files.paths,
            self._read,
            on_reloaded=lambda shown: self._tell("tls_reloaded", shown.validity),
            on_kept=self._kept,
            monotonic=monotonic,
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
            require_client_authentication=self._files.client_authorities is not None,
        )

    def _read(self) -> ShownFiles:
        files = self._files
        pair = read_key_pair(files.certificate, files.key)
        authorities = read_authorities(files.client_authorities) if files.client_authorities else None
        if self._check is not None:
            try:
                self._check(pair.certificate, pair.key, authorities)
            except ValueError as error:
                raise CertificateError(f"{files.certificate}: {error}") from error
        configuration = grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authorities)
        names = frozenset(identities(names_in(pair.certificate)))
        return ShownFiles(pair, pair.validity, authorities, names, configuration)

    def _kept(self, error: ValueError) -> None:
        _log.error("tls_files_refused", problem=str(error), in_force="those read before", files=self._names())

    def _tell(self, event: str, validity: Validity) -> None:
        now = dt.datetime.now(dt.UTC)
        problem = validity.problem(now)
        fields = {"files": self._names(), "not_after": validity.not_after.isoformat()}
        _log.info(event, **fields)
        if problem is not None:
            _log.warning("tls_certificate_not_valid", problem=f"the certificate {problem}", **fields)
        elif validity.not_after - now < dt.timedelta(days=ENDS_SOON_DAYS):
            _log.warning("tls_certificate_ends_soon", **fields)

    def _names(self) -> list[str]:
        return [str(path) for path in self._files.paths]
