"""A name server from its settings to its end, in whatever event loop runs it."""

from __future__ import annotations

import asyncio
import contextlib

from namesrv.server.listener import CannotListen
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import DataDir, DataDirError
from namesrv.storage.database import Database

__all__ = ["CannotListen", "DataDirError", "serve_until"]


async def serve_until(settings: NamesrvSettings, stop: asyncio.Event) -> None:
    """Serves until the event is set.

    Raises:
        CannotListen: The address, certificates or permits cannot be used.
        DataDirError: The data directory cannot be used.
    """
    with contextlib.ExitStack() as resources:
        data_dir = DataDir.open(settings.data_dir) if settings.data_dir else None
        if data_dir:
            resources.callback(data_dir.close)
        await NamesrvServer(settings, Database(data_dir.path) if data_dir else None).run(stop)
