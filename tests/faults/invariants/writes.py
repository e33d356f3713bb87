"""Invariants of writes: what an operator was told to be done is there from then on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.history import Record
from tests.faults.invariants.timeline import Timeline

LATE_SECONDS = 15.0
"""How long after a write whose answer was lost it may take effect: it may wait in a connection of a stopped process."""

Value = str | None


@dataclass
class Item:
    """What may be read of one item."""

    value: Value = None
    known: bool = False
    """Whether it has been read or written at all."""
    lost: list[tuple[float, Value]] = field(default_factory=list)
    """Writes without an answer that may still take effect, and until when."""

    def accepts(self, value: Value, at: float) -> bool:
        """Whether this may be read now; if so, it is what must be read from now on."""
        self.lost = [(until, lost) for until, lost in self.lost if until >= at]
        if self.known and value != self.value and all(value != lost for _, lost in self.lost):
            return False
        self.value, self.known = value, True
        return True


def check_writes(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Whatever is read was acknowledged last, or lost its answer a moment ago."""
    items: dict[tuple[str, str], Item] = defaultdict(Item)
    for record in records:
        server = record.get("server", "")
        if record["what"] == "write":
            item = items[server, record["item"]]
            if record["outcome"] == "ok":
                item.value, item.known = record["value"], True
            elif record["outcome"] == "unknown":
                late = timeline.comes_back_after(server, record["at"]) + LATE_SECONDS
                item.lost.append((late, record["value"]))
        elif record["what"] == "read":
            for name, value in record["values"].items():
                item = items[server, name]
                if not item.accepts(value, record["at"]):
                    yield (
                        f"writes: {name} of {server} is {value!r} at {record['at']:.3f} s, "
                        f"and {item.value!r} was acknowledged"
                    )
                    item.value = value
