"""Object stores, by the clients of fsspec: S3, Google Cloud Storage, Azure; and HDFS, by hdfs-native.

A file is made once by the condition that these stores know: ``If-None-Match: *`` on S3 and Azure, generation 0 on
Google's. HDFS has none; there a finished file is renamed, which fails if the name is taken. (Arrow's client of HDFS
removes the file of that name and renames again, so no log can be written by it.) The clients find endpoint
and credentials as the tools of each store do: in the environment, in its files, or from the machine's role.
"""

from __future__ import annotations

import errno
import importlib
import io
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, BinaryIO, cast

from groundwork.printable import how_to_install
from route_pipeline.stores.store import (
    MissingFileError,
    StoredFile,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)

EXTRAS = {"s3": "s3", "gs": "gcs", "abfss": "azure", "hdfs": "hdfs"}
"""Schemes, and the extra of this package that brings the client."""

CONNECT_SECONDS, ANSWER_SECONDS = 5, 20
"""How long one attempt may take to connect, and to answer. fsspec's client makes five."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": ANSWER_SECONDS,
            # One, because the client of fsspec repeats.
            "retries": {"mode": "standard", "total_max_attempts": 1},
        }
    },
    # Without these it asks a name node that is down for more than two minutes.
    "hdfs": {
        "dfs.client.failover.max.attempts": "5",
        "dfs.client.failover.sleep.max.millis": "2000",
        "dfs.client.socket-timeout": f"{ANSWER_SECONDS * 1000}",
    },
}
_WHOLE: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}}
"""How to read whole files, which are small: by one request each. More would first ask for the size."""
_BLOCK = 8 * 1024 * 1024
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "modification_time")
"""What each client calls the time at which a file was written; of HDFS in milliseconds."""
_WILL_NOT_PASS = (
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.EPERM, errno.ENOSYS),
    getattr(errno, "EREMCHG", errno.ENOENT),  # how fsspec's client names a redirection
)
_OTHER_PLACE = "look at the region (AWS_REGION) and the endpoint (AWS_ENDPOINT_URL)"
_KEY = "look at the credentials"
_HINTS = {
    "AuthorizationHeaderMalformed": _OTHER_PLACE,
    "ExpiredToken": "renew the credentials",
    "IllegalLocationConstraintException": _OTHER_PLACE,
    "InvalidAccessKeyId": _KEY,
    "PermanentRedirect": _OTHER_PLACE,
    "RequestTimeTooSkewed": "set this machine's clock",
    "SignatureDoesNotMatch": _KEY,
}
"""What to do, by the code of S3's error."""


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A prefix of a bucket, or a folder of HDFS."""

    scheme: str
    """One of EXTRAS."""
    root: str
    """Bucket and prefix, as the client names them."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.root}"

    def uri(self, path: str) -> str:
        return f"{self.url}/{path}"

    def files(self, folder: str = "") -> list[StoredFile]:
        prefix = self._name(folder)
        with self._errors(folder):
            try:
                found = self._below(prefix)
            except FileNotFoundError:
                self._check_bucket()
                return []
            # A folder whose first file appears meanwhile may come as such.
            listed = (self._file(one) for one in found if one.get("type") != "directory")
            return sorted(listed, key=lambda file: file.path)

    def info(self, path: str) -> StoredFile:
        with self._errors(path):
            return self._file(self._client().info(self._name(path)))

    def read(self, path: str) -> bytes:
        with self._errors(path):
            content: bytes = self._client().cat_file(self._name(path), **_WHOLE.get(self.scheme, {}))
            return content

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        names = [self._name(path) for path in paths]
        with self._errors(""):
            found = self._client().cat(names, on_error="return", **_WHOLE.get(self.scheme, {})) if names else {}
        contents: list[bytes | None] = []
        for name, path in zip(names, paths, strict=True):
            content = found[name]
            if isinstance(content, Exception):
                try:
                    with self._errors(path):
                        raise content
                except MissingFileError:
                    content = None
            contents.append(content)
        return contents

    def create(self, path: str, content: bytes) -> bool:
        name = self._name(path)
        with self._errors(path, writing=True):
            try:
                if self.scheme == "hdfs":
                    return self._create_by_rename(name, content)
                self._client().pipe_file(name, content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if _is_conflict(error):
                    return False
                raise
        return True

    @contextmanager
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        """A file to be written from its start, in parts: it is there when the block is left."""
        with (
            self._errors(path, writing=True),
            self._client().open(self._name(path), "wb", block_size=_BLOCK) as stream,
        ):
            yield stream

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with self._errors(path), self._client().open(self._name(path), "rb") as stream:
            yield cast(BinaryIO, _Reading(stream, partial(self._errors, path)))

    def delete(self, path: str) -> None:
        with self._errors(path):
            try:
                self._client().rm_file(self._name(path))
            except FileNotFoundError:
                return

    def make_folder(self, path: str) -> None:
        """Nothing: there are no folders, and HDFS makes them by itself."""

    def _below(self, folder: str) -> list[dict[str, Any]]:
        """What the client knows of all files below a folder."""
        client = self._client()
        if self.scheme != "hdfs":
            return list(client.find(folder, detail=True).values())
        # fsspec's own way over folders passes over those that cannot be listed at that moment.
        found: list[dict[str, Any]] = []
        with suppress(FileNotFoundError):
            for one in client.ls(folder, detail=True):
                found += self._below(one["name"]) if one["type"] == "directory" else [one]
        return found

    def _create_by_rename(self, name: str, content: bytes) -> bool:
        client = self._client()
        folder, _, last = name.rpartition("/")
        part = f"{folder}/.{last}.{secrets.token_hex(4)}.part"
        try:
            client.pipe_file(part, content)
            client.mv(part, name)
        except Exception:  # the client has errors of its own, and the answer may have been lost
            with suppress(FileNotFoundError):
                client.rm_file(part)
            if client.exists(name):
                return False
            raise
        return True

    def _name(self, path: str) -> str:
        """The client's name of a file."""
        return f"{_client(self.url)[1]}/{path}".rstrip("/")

    def _file(self, found: dict[str, Any]) -> StoredFile:
        modified = next((found[name] for name in _MODIFIED if name in found), None)
        if isinstance(modified, str):
            modified = datetime.fromisoformat(modified)
        if isinstance(modified, int):
            modified = datetime.fromtimestamp(modified / 1000, UTC)
        if not isinstance(modified, datetime):
            raise StoreError(f"{self.url} does not say when {found['name']} was written")
        if modified.tzinfo is None:
            modified = modified.replace(tzinfo=UTC)
        name = str(found["name"]).lstrip("/").removeprefix(self._name("").lstrip("/")).lstrip("/")
        return StoredFile(name, int(found["size"]), modified)

    def _client(self) -> Any:
        return _client(self.url)[0]

    def _check_bucket(self) -> None:
        """Tells a bucket that is not there from a prefix without files."""
        bucket = self._name("").partition("/")[0]
        if bucket and not self._client().exists(bucket):
            raise StoreError(f"{self.scheme}://{self.root.partition('/')[0]} is not there")

    @contextmanager
    def _errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """Gives the client's errors in a line."""
        at = self.uri(path).rstrip("/")
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if writing:
                raise StoreError(f"{at} cannot be written to: {_line(error)}") from error
            raise MissingFileError(f"{at} is missing") from error
        except PermissionError as error:
            raise StoreRefusedError(f"{at}: no right to it: {_line(error)}") from error
        except Exception as error:  # each client has errors of its own
            kind = StoreError if getattr(error, "errno", None) in _WILL_NOT_PASS else StoreUnavailableError
            raise kind(f"{at} cannot be reached: {_line(error)}") from error


class _Reading(io.RawIOBase):
    """A file that is read. It raises StoreErrors: who reads it could take the client's errors for errors of his own."""

    def __init__(self, stream: BinaryIO, errors: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._stream = stream
        self._errors = errors

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        with self._errors():
            return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with self._errors():
            return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _is_conflict(error: OSError) -> bool:
    """Whether the condition was not met, or another request for the same name was faster."""
    text = f"{error} {getattr(error, '__cause__', '') or ''}"
    return any(code in text for code in ("PreconditionFailed", "ConditionalRequestConflict", "ConditionNotMet"))


def _line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    answer = getattr(error.__cause__, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    hint = f": {_HINTS[code]}" if code in _HINTS else ""
    return " ".join(str(text).split())[:300] + hint


@cache
def _client(url: str) -> tuple[Any, str]:
    """The client and its name for the root. Nothing is cached of what it lists: others write to the same place."""
    scheme = url.partition(":")[0]
    try:
        if scheme == "hdfs":
            # fsspec's registry has Arrow's client under this name. In the name of a cluster capitals count.
            host, _, path = url.partition("://")[2].partition("/")
            client = importlib.import_module("hdfs_native.fsspec").HdfsFileSystem
            return client(host, None, **_OPTIONS[scheme]), f"/{path}".rstrip("/")
        core = importlib.import_module("fsspec.core")
        client, root = core.url_to_fs(url, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except (ImportError, ValueError) as error:  # a name that no client has registered is a ValueError
        install = how_to_install(EXTRAS[scheme])
        raise StoreError(f"{scheme}:// needs a client that is missing ({_line(error)}); {install}") from error
    except Exception as error:  # each client has errors of its own
        raise StoreError(f"{url} cannot be reached: {_line(error)}") from error
    return client, str(root).rstrip("/")
