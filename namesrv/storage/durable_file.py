"""A small file in the data directory that survives a kill at any moment, and a copy of its former content."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from groundwork import disk
from groundwork.checksums import is_damaged
from groundwork.files import replace_durably
from namesrv.storage.data_dir import DataDirError

ContentT = TypeVar("ContentT")
ModelT = TypeVar("ModelT", bound=BaseModel)

_WHAT_TO_DO = "restore one of them, or remove both to start without it"

_log = structlog.get_logger(__name__)


class BrokenFile(Exception):
    """A file does not hold what it should. The text says why, and continues the file's name: ``is not JSON``."""


def read_model(model: type[ModelT], content: bytes, what: str) -> ModelT:
    """The content of a JSON file that a model describes.

    Args:
        what: The same in words, for the error: ``intents of version 1``.

    Raises:
        BrokenFile: It holds something else. The text names the first place that is wrong.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        reason = " ".join(first["msg"].split())  # the error quotes the file, which may contain line breaks
        raise BrokenFile(f"does not hold {what}: {place}: {reason}") from error


class DurableFile(Generic[ContentT]):
    """A file and, beside it, its copy ``<name>.bak``.

    Whatever happens, one of the two holds the content that was made durable last. Once ``load`` has returned, the file
    itself holds it, so a copy of the file never replaces a good copy by a broken one.
    """

    def __init__(
        self,
        file: Path,
        empty: ContentT,
        decode: Callable[[bytes], ContentT],
        encode: Callable[[ContentT], bytes],
        write: Callable[[Path, bytes], None] = replace_durably,
    ) -> None:
        """Touches nothing yet.

        Args:
            file: The file; its folder exists.
            empty: The content if there never was a file.
            decode: Makes the content from the bytes of a file, or raises BrokenFile.
        """
        self._file = file
        self._copy = file.with_name(f"{file.name}.bak")
        self._empty = empty
        self._decode = decode
        self._encode = encode
        self._write = write

    def load(self) -> ContentT:
        """Reads the content.

        If the file is broken, or missing while its copy is there, the copy takes its place, and a broken file is kept
        under the name ``<name>.broken`` (RocketMQ does not start then; it never reads its copy).

        Raises:
            DataDirError: Neither has a usable content, or one of them cannot be read or written.
        """
        try:
            return self._load()
        except OSError as error:
            raise DataDirError(f"{error.filename or self._file}: {error.strerror}") from error

    def save(self, content: ContentT) -> None:
        """Makes a content durable. Blocks: not for the event loop.

        Raises:
            OSError: It could not; the file is as it was. The error has a ``filename``.
        """
        try:
            self._save(content)
        except OSError as error:  # an error of a write, such as a full disk, names no file
            error.filename = error.filename or str(self._file)
            raise

    def _save(self, content: ContentT) -> None:
        before = self._file.read_bytes() if self._file.exists() else None
        if before is not None and is_damaged(self._file, before):
            before = None  # the disk has damaged the file since it was loaded: the copy is better
        if before is not None:
            self._write(self._copy, before)
        try:
            self._write(self._file, self._encode(content))
        except OSError:
            with suppress(OSError):
                self._put_back(before)  # the new file may be in place but not durable
            raise

    def _load(self) -> ContentT:
        try:
            if self._file.exists():
                return self._read(self._file)
            if not self._copy.exists():
                return self._empty
            problem = f"{self._file} is missing"
        except BrokenFile as broken:
            problem = str(broken)
        content = self._read_copy(problem)
        if self._file.exists():
            disk.rename(self._file, self._file.with_name(f"{self._file.name}.broken"))
        self._write(self._file, self._copy.read_bytes())
        _log.warning("restored_from_copy", file=str(self._file), problem=problem, copy=str(self._copy))
        return content

    def _read(self, file: Path) -> ContentT:
        try:
            content = file.read_bytes()
            if not is_damaged(file, content):
                return self._decode(content)
        except BrokenFile as broken:
            raise BrokenFile(f"{file} {broken}") from broken
        raise BrokenFile(f"{file} does not match its checksum")

    def _read_copy(self, problem: str) -> ContentT:
        try:
            if self._copy.exists():
                return self._read(self._copy)
        except BrokenFile as broken:
            raise DataDirError(f"{problem}; {broken}; {_WHAT_TO_DO}") from broken
        raise DataDirError(f"{problem}; {self._copy} is missing; {_WHAT_TO_DO}")

    def _put_back(self, before: bytes | None) -> None:
        if before is None:
            disk.remove(self._file)
        else:
            self._write(self._file, before)
