"""Routes on disk, for a start while no name server answers, and the thread that reads and writes them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from google.protobuf.message import DecodeError
from namesrv_api.v1 import route_data_pb2

from namesrv_common.files import disk
from namesrv_common.files.regular_files import read_at_most
from route_client.route import TopicRoute, from_wire

# Routes on disk, for a start while no name server answers. One small file a topic. Blocking: not for an event loop.
#
# A file is a line of JSON, which says what it is and the SHA-256 of the rest, and a TopicRouteData. It is written
# aside and renamed, so a reader sees the old file or the new one. Two processes can share a folder. The later write
# of a topic stays. A file that a crash of the machine left half written does not match its checksum.

FORMAT = "namesrv-route-cache-1"
SUFFIX = ".route"
MAX_FILE_BYTES = 8 * 1024 * 1024
"""Larger files are not the cache's: a route travels in a message of 4 MiB at most. Reading one must not fill memory."""

_log = logging.getLogger(__name__)


class DiskCache:
    """A folder with routes."""

    def __init__(self, folder: Path, fleet: str) -> None:
        """Makes the folder if it is not there.

        Args:
            folder: Where.
            fleet: Tells name servers of different environments apart that share a folder.

        Raises:
            OSError: The folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fleet = fleet

    def load(self, topic: str) -> TopicRoute | None:
        """The route that was saved last; None if there is none, or if its file cannot be trusted."""
        path = self._path(topic)
        try:
            return self._read(topic, read_at_most(path, MAX_FILE_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, DecodeError) as error:
            _log.warning("the cached route of topic %s is not used: %s: %s", topic, path.name, error)
            return None

    def save(self, topic: str, body: bytes | None) -> None:
        """Replaces a topic's file, or removes it if there is no route now. Failures are logged.

        Args:
            topic: Name of the topic.
            body: Its route, an encoded TopicRouteData.
        """
        try:
            if body is None:
                disk.remove(self._path(topic))
            else:
                self._replace(self._path(topic), self._head(topic, body) + b"\n" + body)
        except OSError as error:
            _log.warning("the route of topic %s could not be cached: %s", topic, error)

    def _path(self, topic: str) -> Path:
        # Names have up to 255 characters, and some that file systems do not take.
        return self._folder / (hashlib.sha256(f"{self._fleet}\n{topic}".encode()).hexdigest()[:40] + SUFFIX)

    def _head(self, topic: str, body: bytes) -> bytes:
        checksum = hashlib.sha256(body).hexdigest()
        return json.dumps({"format": FORMAT, "fleet": self._fleet, "topic": topic, "sha256": checksum}).encode()

    def _read(self, topic: str, content: bytes) -> TopicRoute:
        head, _, body = content.partition(b"\n")
        if head != self._head(topic, body):
            raise ValueError("its first line is not the one that its content, topic and fleet would have")
        return from_wire(route_data_pb2.TopicRouteData.FromString(body))

    def _replace(self, path: Path, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                disk.write(file, content)
            disk.rename(Path(temporary), path)
        except BaseException:
            disk.remove(Path(temporary))
            raise


class DiskWriter:
    """Reads and saves routes on a thread, so that the event loop never waits for the disk."""

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="route-client-disk")
        self._waiting: dict[str, bytes | None] = {}

    def save(self, topic: str, body: bytes | None) -> None:
        """Has an encoded route saved soon, or its file removed if there is none now.

        Several changes of a topic while the disk is busy are saved once.
        """
        self._waiting[topic] = body
        if len(self._waiting) == 1:  # otherwise, the thread has not taken the others yet, and takes this one with them
            self._thread.submit(self._save_waiting)

    async def load(self, topic: str) -> TopicRoute | None:
        """The route that was saved last, if its file can be trusted."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.cache.load, topic)

    async def close(self, seconds: float) -> None:
        """Saves what waits, for so long at most, and ends the thread after what it is at."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._save_waiting)
        except TimeoutError:
            _log.warning("the disk cache did not take all routes in time")
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _save_waiting(self) -> None:
        while self._waiting:
            self.cache.save(*self._waiting.popitem())
