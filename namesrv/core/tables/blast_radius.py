"""The blast radius of a change: its effect on the routes, before or after it is made."""

from __future__ import annotations

from namesrv.core.records.rows import BlastRadius, QueueData, WriteRule
from namesrv.core.slices import Sliced
from namesrv.core.tables.edit import TableEdit

MAX_SAMPLE_TOPICS = 100
"""Most topics that are named."""

TOPIC_SLICE = 100
"""Topics that are looked at before giving way: about a millisecond."""


class _Topics:
    """Counts topics and keeps the first of them by name."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[str] = []

    def add(self, topic: str) -> None:
        self.count += 1
        self._names.append(topic)
        if len(self._names) == 10 * MAX_SAMPLE_TOPICS:  # sorting all of them at the end would take long
            self._names = self.sample()

    def sample(self) -> list[str]:
        return sorted(self._names)[:MAX_SAMPLE_TOPICS]


def blast_radius(edit: TableEdit) -> Sliced[BlastRadius]:
    """Measures an edit that is prepared and not published."""
    vanishing, losing, others = _Topics(), _Topics(), _Topics()
    for count, touched in enumerate(edit.touched_topics(), 1):
        if count % TOPIC_SLICE == 0:
            yield
        if touched is None or (not touched.regrouped and _shown(touched.before) == _shown(touched.after)):
            continue
        if not touched.after:
            vanishing.add(touched.topic)
        elif _has_writable(touched.before) and not _has_writable(touched.after):
            losing.add(touched.topic)
        else:
            others.add(touched.topic)
    changed = vanishing.count + losing.count + others.count
    sample = vanishing.sample() or losing.sample() or others.sample()
    return BlastRadius(changed, losing.count, vanishing.count, tuple(sample))


def _shown(queues: tuple[tuple[QueueData, WriteRule], ...]) -> list[bytes]:
    return [queue_data.fragment_under(rule) for queue_data, rule in queues]


def _has_writable(queues: tuple[tuple[QueueData, WriteRule], ...]) -> bool:
    return any(queue_data.is_writable_under(rule) for queue_data, rule in queues)
