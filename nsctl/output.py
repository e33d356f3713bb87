"""Output of commands as tables or JSON, and the durations that people type."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from rich import box
from rich.table import Table

from namesrv_common.topic_names import shown_labels

# Output of a command: a table for people, JSON for programs.

PERMISSIONS = {0: "---", 1: "--I", 2: "-W-", 3: "-WI", 4: "R--", 5: "R-I", 6: "RW-", 7: "RWI"}
"""As RocketMQ writes them (PermName.perm2String, with I for inherit)."""

Format = Literal["table", "json"]
"""How rows are shown."""
Row = Mapping[str, Any]

_TIME = re.compile(r"(.*(?:at|since|timestamp))_millis")
"""Fields that are milliseconds since the Unix epoch, not durations."""
_WHOLE = re.compile(r"[0-9]{4}-[0-9T:.-]+Z|[0-9,.]*|-|yes|no")
"""Cells that are not broken over lines: times and numbers."""


def table(rows: Iterable[Row], columns: Sequence[str], title: str = "") -> Table:
    """Rows as a table for people. The console shows values as text, whatever a broker calls itself."""
    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    cells = [[_cell(_value_at(one, column)) for column in columns] for one in rows]
    for number, column in enumerate(columns):
        is_whole = all(_WHOLE.fullmatch(cell[number]) for cell in cells)
        drawn.add_column(column.partition("=")[0].replace("_", " ").upper(), overflow="fold", no_wrap=is_whole)
    for cell in cells:
        drawn.add_row(*cell)
    return drawn


def row(message: Message) -> dict[str, Any]:
    """A message of the contract as a row: enums by name, times as ISO 8601, without absent and unspecified fields."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        may_be_left_out = field.enum_type or field.name == "labels"
        if (field.has_presence and not message.HasField(field.name)) or (may_be_left_out and not value):
            continue
        if time := _TIME.fullmatch(field.name):
            found[time[1]] = iso(value)
        elif field.name == "labels":
            found[field.name] = shown_labels(value)
        else:
            found[field.name] = [_plain(field, one) for one in value] if field.is_repeated else _plain(field, value)
    return found


def route_rows(route: route_data_pb2.TopicRouteData) -> list[Row]:
    """A row for each group of a route."""
    groups = {(group.cluster_name, group.broker_name): group for group in route.broker_datas}
    none = route_data_pb2.BrokerData()
    return [
        {**row(groups.get((queues.cluster_name, queues.broker_name), none)), **queues_row(queues)}
        for queues in route.queue_datas
    ]


def queues_row(queues: route_data_pb2.QueueData) -> Row:
    """Queues of a topic on a group, with the permission in words."""
    return {**row(queues), "permission": PERMISSIONS[queues.perm & 7]}


def _plain(field: Any, value: Any) -> Any:
    if field.message_type:
        return row(value)
    if field.enum_type:  # a value without a name is of a newer program
        names = field.enum_type.values_by_number
        prefix = names[0].name.removesuffix("UNSPECIFIED")
        return names[value].name.removeprefix(prefix) if value in names else str(value)
    return value.hex() if isinstance(value, bytes) else value


def _value_at(found: Any, column: str) -> Any:
    _, is_path, path = column.partition("=")
    for name in path.split(".") if is_path else [column]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def iso(millis: int | None) -> str:
    """A time in UTC, ISO 8601; empty if there is none, and a number if it is beyond the calendar."""
    if not millis:
        return ""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms"


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{round(value, 1):,}"
        case list():
            return ", ".join(map(_cell, value))
        case dict():  # such as the id, the address and the labels of a broker
            return ": ".join(" ".join(one) if isinstance(one, list) else str(one) for one in value.values())
        case _:
            return str(value)


# Times that people type: ``90s``, ``30m``, ``2h``, ``7d``.

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")
MOST_DAYS = 3_650
"""Longest duration: ten years. Longer ones are typing errors."""


def seconds(text: str) -> int:
    """The seconds of a duration such as ``2h``.

    Raises:
        typer.BadParameter: It is none, or too long.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r:.50} is no duration such as 90s, 30m, 2h or 7d")
    duration = int(found[1]) * _UNITS[found[2]]
    if not 0 < duration <= MOST_DAYS * 86_400:
        raise typer.BadParameter(f"{text} is not between 1s and {MOST_DAYS}d")
    return duration


def millis_from_now(duration: int | None) -> int | None:
    """Milliseconds since the Unix epoch after so many seconds; None if there is no such duration."""
    return None if duration is None else time.time_ns() // 1_000_000 + duration * 1_000


def duration(name: str, meaning: str) -> Any:
    """Makes an option that is a duration."""
    return typer.Option(name, parser=seconds, metavar="DURATION", help=meaning)


For = Annotated[int | None, duration("--for", "Duration until it ends by itself, such as 30m, 2h or 7d.")]
