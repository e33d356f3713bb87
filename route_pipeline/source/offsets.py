"""Offsets of a stream: a point in the history of each name server. Spark keeps them in the query's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

OFFSET_VERSION = 1
"""Version of the JSON below; raised by a change that an older version would misread."""

UP, LOST, HOLE = "up", "lost", "hole"
_STATES = (UP, LOST, HOLE)


class OffsetError(ValueError):
    """The checkpoint's offset cannot be used; the text is one line."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one name server has been read."""

    namesrv: str = ""
    """Name that it gives itself; empty if it has never answered."""
    epoch: str = ""
    """Its process lifetime; empty if nothing has been read yet."""
    revision: int = 0
    """Everything up to and with this revision has been read."""
    state: str = UP
    """``up``, ``lost`` if it did not answer when this offset was made, or ``hole`` if besides changes were not read."""

    def lost(self, *, hole: bool) -> Position:
        """The same position, with nobody answering there."""
        return replace(self, state=HOLE if hole or self.state == HOLE else LOST)


Positions = dict[str, Position]
"""Positions by address, host:port."""

INITIAL: dict[str, Any] = {"version": OFFSET_VERSION, "namesrvs": {}}
"""Nothing has been read. A constant: Spark asks for it twice for the first batch, and does not keep it."""


def to_json(positions: Positions) -> dict[str, Any]:
    """The offset for Spark."""
    return {
        "version": OFFSET_VERSION,
        "namesrvs": {
            address: {
                "namesrv": position.namesrv,
                "epoch": position.epoch,
                "revision": position.revision,
                "state": position.state,
            }
            for address, position in positions.items()
        },
    }


def from_json(offset: Mapping[str, Any]) -> Positions:
    """The offset that Spark kept.

    Raises:
        OffsetError: It is of another version of this program, or of another source.
    """
    version = offset.get("version") if isinstance(offset, dict) else None
    if type(version) is not int or version != OFFSET_VERSION:  # a JSON true equals 1
        raise OffsetError(
            f"the checkpoint has offsets of version {version!r:.40}, this program knows {OFFSET_VERSION}: "
            "start a new checkpoint, which begins with a snapshot"
        )
    try:
        return {address: _position(**fields) for address, fields in offset["namesrvs"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OffsetError("the checkpoint has an offset that is damaged: start a new checkpoint") from None


def _position(namesrv: object, epoch: object, revision: object, state: object) -> Position:
    if not isinstance(namesrv, str) or not isinstance(epoch, str) or type(revision) is not int:
        raise TypeError
    if revision < 0 or state not in _STATES:
        raise ValueError
    return Position(namesrv, epoch, revision, str(state))
