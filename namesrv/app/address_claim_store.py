"""The store of address claims: they come as brokers leave, and are on disk within a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from groundwork.daemon_executor import DaemonExecutor
from namesrv.app.writer import run_cooperatively
from namesrv.core.address_claims import AddressClaim, AddressClaims
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
        """Loads ``claims``, which must be empty. Blocks, so call it before anybody is answered. Raises DataDirError."""
        claims.load(file.load(), seconds)
        self._claims = claims
        self._file = file
        self._written_version = claims.version
        self.problem: str | None = None
        """Why the last file could not be written; None if it could."""
        self._writing: asyncio.Future[OSError | None] | None = None
        """The last write, which a disk that hangs may not have ended yet."""
        self._thread = DaemonExecutor(1, "address-claims-file")

    async def write_periodically(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Writes what has changed, again and again. Runs until cancelled."""
        while True:
            await sleep(WRITE_INTERVAL_SECONDS)
            await self.write_if_changed(WRITE_SECONDS)

    async def write_if_changed(self, deadline_seconds: float) -> None:
        """Writes the file if it does not hold what is claimed now."""
        try:
            async with asyncio.timeout(deadline_seconds):
                if self._writing is not None:
                    await asyncio.wait([self._writing])  # or each try would leave one more to a disk that hangs
                version = self._claims.version
                if version == self._written_version:
                    return
                claims = await run_cooperatively(self._claims.in_force())
                self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._save, claims)
                error = await asyncio.shield(self._writing)
        except TimeoutError:
            self._note(f"the disk took longer than {deadline_seconds:g} s")
            return
        if error is not None:
            self._note(error.strerror or str(error))
            return
        self._written_version, self.problem = version, None

    def _save(self, claims: list[AddressClaim]) -> OSError | None:
        """Runs in the thread. The error is a result, since nobody may wait for it any more."""
        try:
            self._file.save(claims)
        except OSError as error:
            return error
        return None

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("address_claims_not_written", problem=problem)
        self.problem = problem

    async def close(self, deadline_seconds: float) -> None:
        """Writes once more what has changed, and ends the thread. The tables must be frozen before."""
        await self.write_if_changed(deadline_seconds)
        self._thread.shutdown(wait=False)  # a disk that hangs must not hold up the shutdown
