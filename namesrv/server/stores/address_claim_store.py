"""The store of address claims: they come as brokers leave, and are on disk within a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from groundwork.program.daemon_executor import DaemonExecutor
from namesrv.core.liveness.address_claims import AddressClaims
from namesrv.storage.address_claims_file import AddressClaimsFile

WRITE_INTERVAL_SECONDS = 1.0
"""Pause between two looks for changes. A broker that is down for less when the name server is killed is still in the
snapshot file, so that its address is its own until it is removed, and claimed from then on."""

WRITE_SECONDS = 30.0
"""How long the disk may take."""

_log = structlog.get_logger(__name__)


class AddressClaimStore:
    """Writes the claims, from a thread of its own. When the disk refuses, that is logged once and tried again."""

    def __init__(self, claims: AddressClaims, file: AddressClaimsFile, seconds: float) -> None:
        """Loads the claims. Blocks, so call it before anybody is answered.

        Args:
            claims: Those in force; empty.
            file: The file to write.
            seconds: How long a claim lasts.

        Raises:
            DataDirError: They cannot be loaded.
        """
        claims.load(file.load(), seconds)
        self._claims = claims
        self._file = file
        self._written_version = claims.version
        self._problem: str | None = None
        self._thread = DaemonExecutor(1, "address-claims-file")

    async def write_periodically(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Writes what has changed, again and again. Runs until cancelled."""
        while True:
            await sleep(WRITE_INTERVAL_SECONDS)
            await self.write_if_changed(WRITE_SECONDS)

    async def write_if_changed(self, deadline_seconds: float) -> None:
        """Writes the file if it does not hold what is claimed now."""
        version = self._claims.version
        if version == self._written_version:
            return
        save = partial(self._file.save, self._claims.in_force())
        try:
            async with asyncio.timeout(deadline_seconds):
                await asyncio.get_running_loop().run_in_executor(self._thread, save)
        except OSError as error:  # running out of time is a failure of the disk, too
            problem = error.strerror or f"the disk took longer than {deadline_seconds:g} s"
            if problem != self._problem:
                _log.error("address_claims_not_written", problem=problem)
            self._problem = problem
        else:
            self._written_version, self._problem = version, None

    async def close(self, deadline_seconds: float) -> None:
        """Writes once more what has changed, and ends the thread. The tables must be frozen before."""
        await self.write_if_changed(deadline_seconds)
        self._thread.shutdown(wait=False)  # a disk that hangs must not hold up the shutdown
