"""Failpoints in SQLite: before, in the middle of and after each write, sync, truncation and removal of its files.

SQLite reaches the disk through its VFS, a table of C functions. ``install`` replaces some of them in the default VFS of
this process; connections that are opened later go through them.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

ThingT = TypeVar("ThingT")
Hit = Callable[[str], None]
"""Called at each point; raises OSError if the step is to fail."""

# Result codes of SQLite.
_OK = 0
_FULL = 13
_IOERR_WRITE = 10 | 3 << 8
_IOERR_FSYNC = 10 | 4 << 8
_IOERR_TRUNCATE = 10 | 6 << 8
_IOERR_DELETE = 10 | 10 << 8

# Paths are addresses here: SQLite keeps them, and finds the parameters of a URI behind them.
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """The beginning of sqlite3_vfs."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
    ]


class _Methods(ctypes.Structure):
    """sqlite3_io_methods, version 3. The VFS of Unix has no other."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    ]


class _Points:
    """The replaced functions. They run in the thread that uses SQLite, which takes the interpreter's lock for them."""

    def __init__(self, hit: Hit, vfs: _Vfs) -> None:
        self._hit = hit
        self._open_before, self._delete_before = _OPEN(vfs.open), _DELETE(vfs.delete)
        self._names: dict[int, str] = {}
        """Names of files by the address of their sqlite3_file."""
        self._methods: dict[int, _Methods] = {}
        """The methods with points, by the address of those without."""
        self._replace(vfs, "open", _OPEN(self._open))
        self._replace(vfs, "delete", _DELETE(self._delete))

    def _open(self, vfs: int, path: int | None, file: int, flags: int, flags_out: int | None) -> int:
        code: int = self._open_before(vfs, path, file, flags, flags_out)
        if code == _OK and path is not None:
            self._names[file] = _name(path)
            methods = ctypes.c_void_p.from_address(file)
            assert methods.value is not None
            if methods.value not in self._methods:
                self._methods[methods.value] = self._with_points(_Methods.from_address(methods.value))
            methods.value = ctypes.addressof(self._methods[methods.value])
        return code

    def _delete(self, vfs: int, path: int, sync_folder: int) -> int:
        step = f"remove {_name(path)}"
        return self._between(step, _IOERR_DELETE, lambda: self._delete_before(vfs, path, sync_folder))

    def _with_points(self, before: _Methods) -> _Methods:
        write_before, sync_before = _WRITE(before.write), _SYNC(before.sync)
        truncate_before = _TRUNCATE(before.truncate)

        def write(file: int, content: int, size: int, offset: int) -> int:
            def in_halves() -> int:
                half = size // 2
                code: int = write_before(file, content, half, offset)
                if code == _OK:
                    self._hit(f"half write {self._names[file]}")
                    code = write_before(file, content + half, size - half, offset + half)
                return code

            return self._between(f"write {self._names[file]}", _IOERR_WRITE, in_halves)

        def truncate(file: int, size: int) -> int:
            return self._between(f"truncate {self._names[file]}", _IOERR_TRUNCATE, lambda: truncate_before(file, size))

        def sync(file: int, flags: int) -> int:
            return self._between(f"fsync {self._names[file]}", _IOERR_FSYNC, lambda: sync_before(file, flags))

        methods = _kept(_Methods.from_buffer_copy(before))
        self._replace(methods, "write", _WRITE(write))
        self._replace(methods, "truncate", _TRUNCATE(truncate))
        self._replace(methods, "sync", _SYNC(sync))
        return methods

    @staticmethod
    def _replace(table: ctypes.Structure, name: str, function: Any) -> None:
        """Replaces a function until the interpreter ends: connections that are open then are closed without it."""
        before = getattr(table, name)
        setattr(table, name, ctypes.cast(_kept(function), ctypes.c_void_p).value)
        atexit.register(setattr, table, name, before)

    def _between(self, step: str, failed: int, function: Callable[[], int]) -> int:
        """The code of a step between its points; an error of the disk at one is a code of SQLite."""
        try:
            self._hit(f"before {step}")
            code = function()
            self._hit(f"after {step}")
        except OSError as error:
            return _FULL if error.errno == errno.ENOSPC else failed
        return code


def _kept(thing: ThingT) -> ThingT:
    """Something that SQLite has the address of, so that it must outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


def _name(path: int) -> str:
    return Path(os.fsdecode(ctypes.string_at(path))).name


def install(hit: Hit) -> None:
    """Puts the points into SQLite, for the whole life of this process, which must have no connection yet."""
    import _sqlite3  # noqa: PLC0415 - a program that does not use it need not have it

    find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    find.restype = ctypes.POINTER(_Vfs)
    _Points(hit, find(None).contents)
