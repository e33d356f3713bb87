"""URLs and paths of stores."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path
from urllib.parse import unquote, urlsplit

from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.remote import EXTRAS, RemoteStore
from route_pipeline.stores.store import Store, StoreError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_PATTERN_CHARACTERS = re.compile(r"[*?\[\]{}\\]")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


def open_store(place: str | PathLike[str]) -> Store:
    """The store at a path or a URL; nothing is read yet.

    Args:
        place: A path, or a URL that begins with ``file:``, ``s3://`` (or ``s3a://``), ``gs://``, ``abfss://`` or
            ``hdfs://``.

    Raises:
        StoreError: The scheme is none of these, or the name cannot be used.
    """
    text = fspath(place)
    if _PATTERN_CHARACTERS.search(text):
        raise StoreError(f"{text} has one of * ? [ ] {{ }} \\ in its name, which Spark takes for a pattern")
    found = _SCHEME.match(text)
    if found is None:
        return LocalStore(Path(text).absolute())
    scheme = _ALIASES.get(found[1].lower(), found[1].lower())
    if scheme == "file":
        url = urlsplit(text)
        if url.netloc not in {"", "localhost"}:
            raise StoreError(f"{text} names the host {url.netloc}: a file: URL has three slashes, file:///folder")
        return LocalStore(Path(unquote(url.path)).absolute())
    if scheme not in EXTRAS:
        raise StoreError(f"{text} begins with none of file:, s3://, s3a://, gs://, abfss://, hdfs://")
    name = text.partition("://")[2]
    root = name.strip("/")
    if not root or name.startswith("/") or "//" in root:
        like = f"{found[1]}://{'host' if scheme == 'hdfs' else 'bucket'}/routes"
        raise StoreError(f"{text} does not name a place: it is to be like {like}")
    return RemoteStore(scheme, root)
