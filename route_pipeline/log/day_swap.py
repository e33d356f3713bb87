"""The exchange of days of the log for their compacted form, which may be killed at any step.

Where the file system can do it, a day and its compacted form are exchanged in one step, so a reader that lists the log
sees one or the other. Elsewhere there is a moment without the day; ``missing_day`` tells readers of it. If days before
it go with it, the new folder has a list of them. The next writer to the log removes what is left.
"""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

from groundwork.files import disk

_STAGED, _ASIDE, _REPLACED = "compacted-", "old-", "replaced-"
_LIST = "_replaces.json"
"""A file in the folder of a day: the days before it that its rows stand for, too. Spark and Arrow ignore the name."""

_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def staged_day(work: Path, day: str) -> Path:
    """The folder for the replacement of a day; ``day`` is the name of the day's folder."""
    return work / f"{_STAGED}{day}"


def replace_days(changes: Path, work: Path, days: list[str]) -> None:
    """Puts what is staged for the last of some days in its place, and takes the others away.

    Args:
        changes: The folder of the days.
        work: A folder of the same file system that readers do not look into.
        days: Names of folders of days.

    Raises:
        OSError: It could not; before the exchange, nothing has changed.
    """
    last = days[-1]
    staged, target = staged_day(work, last), changes / last
    if days[:-1]:
        with disk.open_new(staged / _LIST) as stream:
            disk.write(stream, staged / _LIST, json.dumps(days[:-1]).encode())
            disk.sync(stream, staged / _LIST)
    try:
        disk.exchange(staged, target)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        disk.rename(target, work / f"{_ASIDE}{last}")
        disk.rename(staged, target)
    finish_replacing(changes, work)


def finish_replacing(changes: Path, work: Path) -> None:
    """Ends an exchange that was begun. A replacement that is only staged is removed.

    Raises:
        OSError: It could not.
    """
    for aside in work.glob(f"{_ASIDE}date=*"):
        day = aside.name.removeprefix(_ASIDE)
        if not (changes / day).exists():
            staged = staged_day(work, day)
            disk.rename(staged if staged.exists() else aside, changes / day)
    for listed in changes.glob(f"date=*/{_LIST}"):
        for day in json.loads(listed.read_text(encoding="utf-8")):
            if (changes / day).exists():
                # A day goes as a whole: a removal means nothing without the row before it, and that row alone would be
                # wrong.
                disk.rename(changes / day, work / f"{_REPLACED}{day}")
        disk.remove(listed)
    for kind in (_STAGED, _ASIDE, _REPLACED):
        for left in work.glob(f"{kind}date=*"):
            shutil.rmtree(left, ignore_errors=True)


def missing_day(changes: Path, work: Path) -> str | None:
    """A day that is not at its place at this moment; it is back once a compaction or another writer goes on."""
    asides = (aside.name.removeprefix(_ASIDE) for aside in work.glob(f"{_ASIDE}date=*"))
    return next((day for day in asides if not (changes / day).exists()), None)
