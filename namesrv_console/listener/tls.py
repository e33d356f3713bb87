"""TLS of the page: certificates that are read again when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import structlog

from groundwork.certificates import Validity, read_key_pair
from groundwork.hot_reload import CHECK_SECONDS, HotReloaded

_log = structlog.get_logger(__name__)


class PageTls:
    """What new connections to the page are shown; those that are open go on as they began."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads the files.

        Raises:
            CertificateError: They cannot be used; the text says why.
        """
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """Stays the same; what it shows changes."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._certificate = certificate
        self._key = key
        self._loaded = HotReloaded([certificate, key], self._load, on_reloaded=self._reloaded, on_kept=self._kept)

    async def watch(self) -> NoReturn:
        """Looks every second whether the files have changed. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._loaded.refreshed()

    def _load(self) -> Validity:
        pair = read_key_pair(self._certificate, self._key)  # says what is wrong; the context would not
        self.context.load_cert_chain(self._certificate, self._key)
        return pair.validity

    def _reloaded(self, validity: Validity) -> None:
        _log.info("tls_reloaded", file=str(self._certificate), not_after=validity.not_after.isoformat())

    def _kept(self, error: ValueError) -> None:
        _log.error("tls_files_refused", problem=str(error), in_force="those read before")
