"""The end of a compaction of the old layout that was killed, which exchanged folders of days for compacted ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from groundwork import disk

_STAGED, _ASIDE, _REPLACED = "compacted-", "old-", "replaced-"
_LIST = "_replaces.json"
"""A file in the folder of a day: the days before it that its rows stand for, too."""


def finish_replacing(changes: Path, work: Path) -> None:
    """Ends an exchange that was begun. A replacement that is only staged is removed.

    Args:
        changes: The folder of the days.
        work: The folder of what was under way.

    Raises:
        OSError: It could not.
    """
    for aside in work.glob(f"{_ASIDE}date=*"):
        day = aside.name.removeprefix(_ASIDE)
        if not (changes / day).exists():
            staged = work / f"{_STAGED}{day}"
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
