"""A name server from its settings to its end, in whatever event loop runs it."""

from __future__ import annotations

import asyncio
import contextlib

from namesrv.config.settings import NamesrvSettings
from namesrv.remoting.front import RemotingFront
from namesrv.server.listener import CannotListen
from namesrv.server.replica.server import ReplicaServer
from namesrv.server.server import NamesrvServer
from namesrv.server.worker_role import WorkerRole
from namesrv.storage.data_dir import DataDir, DataDirError

__all__ = ["CannotListen", "DataDirError", "serve_until"]


async def serve_until(settings: NamesrvSettings, stop: asyncio.Event, place: WorkerRole | None = None) -> None:
    """Serves until the event is set.

    Args:
        settings: How to serve.
        stop: When to end.
        place: Which of several processes this is; None: the only one.

    Raises:
        CannotListen: The address, certificates or permits cannot be used.
        DataDirError: The data directory cannot be used.
    """
    with contextlib.ExitStack() as resources:
        data_dir = DataDir.open(settings.data_dir) if settings.data_dir else None
        if data_dir:
            resources.callback(data_dir.close)
        follows = settings.follow or (place is not None and not place.owns_tables)
        is_worker = place is not None and not place.owns_tables  # its owner listens for RocketMQ's protocol
        make_front = RemotingFront if settings.remoting_listen and not is_worker else None
        if follows:
            await ReplicaServer(settings, place, make_front).run(stop)
        else:
            await NamesrvServer(settings, data_dir, place, make_front).run(stop)
