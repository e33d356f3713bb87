"""The store of address claims: they come as brokers leave, and are on disk within a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from namesrv.core.address_claims import AddressClaim, AddressClaims
from namesrv.core.errors import NotDurable
from namesrv.storage.database import Database
from namesrv.storage.tables import ADDRESS_CLAIMS

WRITE_INTERVAL_SECONDS = 1.0
"""Pause between two looks for changes. A broker that is down for less when the name server is killed is still in the
snapshot file, so that its address is its own until it is removed, and claimed from then on."""


class AddressClaimStore:
    """Writes the claims to the database. When the disk refuses, the next look tries again."""

    def __init__(self, claims: AddressClaims, database: Database, seconds: float) -> None:
        """Loads ``claims``, which must be empty. Blocks, so call it before anybody is answered. Raises DataDirError."""
        claims.load(database.load(ADDRESS_CLAIMS), seconds)
        self._claims = claims
        self._database = database
        self._written_version = claims.version

    async def write_periodically(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Writes what has changed, again and again. Runs until cancelled."""
        while True:
            await sleep(WRITE_INTERVAL_SECONDS)
            with suppress(NotDurable):
                await self.write_if_changed()

    async def write_if_changed(self) -> None:
        """Makes durable what is claimed now. Raises NotDurable."""
        version = self._claims.version
        if version != self._written_version:
            claims: Iterable[AddressClaim] = self._claims.in_force()
            await self._database.replace(ADDRESS_CLAIMS, claims)
            self._written_version = version
