"""How far each name server has been read: the offset of a stream, which Spark keeps, and what the log's rows say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

OFFSET_VERSION = 2
"""Version of the JSON below; raised by a change that an older version would misread."""

State = Literal["up", "lost", "hole"]
UP: State = "up"
LOST: State = "lost"
HOLE: State = "hole"
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Position:
    """How far one name server has been read."""

    namesrv: str = ""  # name that it gives itself; empty if it has never answered
    epoch: str = ""  # its process lifetime; empty if nothing has been read yet
    revision: _Count = 0  # everything up to and with this revision has been read
    state: State = UP
    """``up``, ``lost`` if it did not answer when this offset was made, or ``hole`` if besides changes were not read."""
    snapshot: _Count = 0  # number of its last snapshot: of a later one it is larger. 0: there is none
    read_at: _Count = 0
    """When it said that it is at this revision, by the reader's clock, microseconds since the Unix epoch."""

    def lost(self, *, hole: bool) -> Position:
        """The same position, with nobody answering there."""
        return replace(self, state=HOLE if hole or self.state == HOLE else LOST)


Positions = dict[str, Position]
"""Positions by address, host:port."""
_POSITIONS = TypeAdapter(Positions)

INITIAL: dict[str, Any] = {"version": OFFSET_VERSION, "namesrvs": {}}
"""Nothing has been read. A constant: Spark asks for it twice for the first batch, and does not keep it."""


def to_json(positions: Positions) -> dict[str, Any]:
    """The offset for Spark."""
    return INITIAL | {"namesrvs": {address: asdict(position) for address, position in positions.items()}}


def from_json(offset: Mapping[str, Any]) -> Positions:
    """The offset that Spark kept. Raises ValueError if another version or source wrote it."""
    version = offset.get("version") if isinstance(offset, dict) else None
    if type(version) is not int or version != OFFSET_VERSION:  # a JSON true equals 1
        raise ValueError(
            f"the checkpoint has offsets of version {version!r:.40}, this program knows {OFFSET_VERSION}: "
            "start a new checkpoint, which begins with a snapshot"
        )
    try:
        return _POSITIONS.validate_json(json.dumps(offset["namesrvs"]), strict=True)
    except (KeyError, ValueError):
        raise ValueError("the checkpoint has an offset that is damaged: start a new checkpoint") from None
