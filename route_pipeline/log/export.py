"""A copy of the log as plain folders, for programs that know nothing of commits."""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import PurePosixPath

from route_pipeline.log.protocol.commits import CHANGES
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.stores.store import StoreError
from route_pipeline.stores.urls import open_store

DONE = "_SUCCESS"
"""A file that is there once the copy is whole, by Hadoop's name for it."""


def export(log: RouteLog, target: str | PathLike[str]) -> int:
    """Copies the files of the log to ``TARGET/date=DATE/``, Hive's layout.

    Args:
        target: Path or URL of a place without files.

    Returns:
        The number of files.

    Raises:
        LogError: A data file is missing, or was cut or changed; nothing is copied.
        StoreError: The target holds something, or cannot be written to, or the log cannot be read.
    """
    found = log.state()
    log.check_not_empty(found)
    log.check_files(found)
    store = open_store(target)
    if store.files():
        raise StoreError(f"{store.url} holds something already: name a place without files")
    files = found.files_of(CHANGES)
    for file in files:
        folder = f"date={file.date}"
        store.make_folder(folder)
        with log.store.open(file.path) as source, store.open_new(f"{folder}/{PurePosixPath(file.path).name}") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
    store.create(DONE, b"")
    return len(files)
