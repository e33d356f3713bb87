"""A history made by hand, for checks to judge."""

from __future__ import annotations

from typing import Any

from tests.faults.history import Record
from tests.faults.invariants import violations
from tests.faults.invariants.lookups import BY_NAME

SERVER = "namesrv-1"


MASTER = "broker-b-0"


SOUND = 20.0
"""When the broker has been sound for long enough to be demanded."""


class Story:
    """A history with one broker at one name server, sound unless something else is said."""

    def __init__(self, group: str = "broker-b") -> None:
        self.group = group
        self.records: list[Record] = [
            {"at": 0.0, "what": "process", "name": SERVER, "event": "started"},
            {"at": 0.5, "what": "topics", "group": group, "version": 1, "topics": ["T0", "only-broker-b"]},
            {"at": 1.0, "what": "process", "name": f"{group}-0", "event": "started"},
            {"at": 60.0, "what": "agreed", "seconds": 0.1, "difference": ""},
        ]

    def add(self, at: float, what: str, **fields: Any) -> None:
        self.records.append({"at": at, "what": what, **fields})
        self.records.sort(key=lambda record: float(record["at"]))

    def lookup(
        self, at: float, *, version: int = 1, lacks: tuple[str, ...] = (), addr: str | None = None, **extra: int
    ) -> None:
        """An answer with both topics of the broker, but for those that it lacks."""
        addr = addr or BY_NAME[f"{self.group}-0"].addr
        topics = {"T0": version, "only-broker-b": version, **extra}
        rows = [row_of(topic, number, addr, self.group) for topic, number in topics.items() if topic not in lacks]
        answer = {
            "header": {"namesrv_name": SERVER, "epoch": "1", "revision": str(int(at * 10))},
            "routes": rows,
            "topics_not_found": [*lacks, "never"],
        }
        self.add(at, "lookup", server=SERVER, began=at - 0.01, answer=answer)

    def broken(self) -> list[str]:
        """The names of the checks that found something."""
        return [violation.partition(":")[0] for violation in violations(self.records)]


def row_of(topic: str, version: int, addr: str, group: str) -> dict[str, Any]:
    name = {"broker_name": group, "cluster_name": "c"}
    queues = {**name, "read_queue_nums": version, "write_queue_nums": version}
    return {
        "topic": topic,
        "route": {"queue_datas": [queues], "broker_datas": [{**name, "broker_addrs": [{"broker_addr": addr}]}]},
    }
