"""The hand-over from the program that became Envoy to the one inside it: a private folder and its files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from namesrv.server.engines.envoy.admin import ADMIN_SOCKET, AdminFailed, EnvoyAdmin
from namesrv.server.worker_role import WorkerRole

FOLDER_VARIABLE = "NAMESRV_ENVOY_FOLDER"
"""Names the private folder."""

INTERPRETER_VARIABLES = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONHOME", "PYTHONPATH")
"""Have to be set for a Python in Envoy."""

BLOCKED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""End the name server. They are blocked in every thread of Envoy, which would end at once."""

CERTIFICATES_FOLDER = "certificates"
"""Envoy reads its certificates again when a file is moved into this one."""

OPEN_SECONDS = 30.0
"""How long Envoy may take to listen once everything else is ready."""

_HANDED_FILE = "handed.json"
_RETRY_SECONDS = 0.005

Application = Callable[..., Coroutine[Any, Any, None]]


class NotInEnvoy(RuntimeError):
    """This process is not an Envoy."""


@dataclass(frozen=True, slots=True)
class Handed:
    """The values that are handed over, as JSON."""

    settings: dict[str, Any]
    """Those of ``namesrv serve``."""
    host: str
    port: int
    """Where to listen; never 0."""
    working_folder: str
    """The folder that relative paths start from. Envoy itself starts in its private folder, from which pyvoy takes
    modules.
    """
    port_descriptor: int | None
    """Holds the port until Envoy has it; None: the supervisor holds it."""
    place: WorkerRole | None = None
    """Which of several processes this is; None: the only one."""

    def write(self, folder: Path) -> None:
        """Writes it into the folder."""
        (folder / _HANDED_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Handed:
        """Reads it from the folder."""
        found = json.loads((folder / _HANDED_FILE).read_text(encoding="utf-8"))
        place = found.pop("place")
        return cls(**found, place=None if place is None else WorkerRole(**place))


async def _not_yet(*_: object) -> None:
    raise AssertionError("Envoy does not listen before there is an application")


@dataclass(slots=True)
class Inside:
    """The Envoy that this process runs in."""

    folder: Path
    handed: Handed
    answer: Application = _not_yet
    """The application that answers requests."""
    may_listen: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once calls can be answered; Envoy waits for it."""

    async def open(self) -> None:
        """Has Envoy listen; returns when it does. Raises TimeoutError."""
        self.may_listen.set()
        async with asyncio.timeout(OPEN_SECONDS):
            while not await self._listens():  # noqa: ASYNC110 - Envoy does not say when
                await asyncio.sleep(_RETRY_SECONDS)
        if self.handed.port_descriptor is not None:
            os.close(self.handed.port_descriptor)

    async def _listens(self) -> bool:
        if self.handed.place is None:
            return await _accepts(self.handed.host, self.handed.port)
        try:  # at the port another process of this name server might answer
            return bool(await EnvoyAdmin(self.folder / ADMIN_SOCKET).number("listener_manager.workers_started"))
        except AdminFailed:
            return False

    def read_certificates_again(self) -> None:
        """Has Envoy look at its files of certificates. Raises OSError."""
        fresh = self.folder / "changed"
        fresh.touch()
        fresh.replace(self.folder / CERTIFICATES_FOLDER / fresh.name)

    def move_out(self) -> None:
        """Removes the private folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


_current: list[Inside] = []


def enter(inside: Inside) -> None:
    """Tells the engine which Envoy it is in."""
    _current[:] = [inside]


def current() -> Inside:
    """The Envoy that this process runs in. Raises NotInEnvoy."""
    if not _current:
        raise NotInEnvoy("the envoy engine runs inside Envoy only: namesrv serve --engine envoy")
    return _current[0]
