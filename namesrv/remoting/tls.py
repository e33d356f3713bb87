"""TLS as RocketMQ's servers have it: no STARTTLS and no ALPN, the first byte of a connection decides."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from groundwork.certificates import read_authorities, read_key_pair
from groundwork.listener_tls import ListenerFiles
from groundwork.watched_file import WatchedFile
from namesrv.remoting.limits import HANDSHAKE_SECONDS, MAX_HANDSHAKES

CLIENT_HELLO = 0x16
"""First byte of a TLS connection. As the first of a frame's length it would make that 352 MiB, which none has."""


BETWEEN_HANDSHAKES_SECONDS = 0.1
"""Time that a handshake counts after its end, so that an address has 160 a second at most. Each takes a millisecond."""

_PROBLEMS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, which tls_client_ca asks for",
    "NO_SHARED_CIPHER": "client and server have no cipher in common",
    "UNSUPPORTED_PROTOCOL": "the client speaks no TLS 1.2 or 1.3",
    "WRONG_VERSION_NUMBER": "what the client sends is no TLS",
}
"""By OpenSSL's reasons."""


def handshake_problem(error: Exception) -> str:
    """Why a handshake failed, for an operator."""
    if isinstance(error, TimeoutError):
        return "the client does not get on with its handshake"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    reason = str(getattr(error, "reason", None) or error)
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"the client does not accept our certificate ({reason})"
    return _PROBLEMS.get(reason, reason)


def certificate_problem(certificate: Mapping[str, Any]) -> str | None:
    """Why a client's certificate, as ``ssl`` has it, cannot be used any longer. A resumed session does not check it."""
    ends = certificate.get("notAfter")
    if ends is None or time.time() <= ssl.cert_time_to_seconds(ends):
        return None
    return "the client's certificate is refused: certificate has expired"


class Handshakes:
    """Bounds TLS handshakes by address. Handshakes of other addresses do not wait."""

    def __init__(self) -> None:
        self._counts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one_of(self, owner: str) -> AsyncIterator[None]:
        """Counts a handshake. Waits while its address has too many; raises ConnectionError after HANDSHAKE_SECONDS."""
        count = self._counts.setdefault(owner, asyncio.Semaphore(MAX_HANDSHAKES))
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await count.acquire()
        except TimeoutError:
            raise ConnectionError("too many handshakes of its address") from None
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(BETWEEN_HANDSHAKES_SECONDS, count.release)


class RemotingTls:
    """What the listener shows. Each new connection gets the files as they were at the last look."""

    def __init__(self, files: ListenerFiles) -> None:
        """Reads the files. Raises CertificateError."""
        self._files = files
        # The gRPC listener reads the same files, and logs those that cannot be used.
        self._loaded = WatchedFile(files.paths, self._load)

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.value

    def look(self) -> None:
        """Checks whether the files have changed. It reads them, and so must not run on the event loop."""
        self._loaded.refreshed()

    def _load(self) -> ssl.SSLContext:
        files = self._files
        read_key_pair(files.certificate, files.key)  # says clearly what is wrong
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2", "http/1.1"])  # RocketMQ has none; the log has a remedy for these
        context.load_cert_chain(files.certificate, files.key)
        if files.client_authorities is not None:
            context.load_verify_locations(cadata=read_authorities(files.client_authorities).decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context
