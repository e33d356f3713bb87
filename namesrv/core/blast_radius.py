"""What a change does, or would do, to the routes."""

from __future__ import annotations

from namesrv.core.records import BlastRadius, QueueData, WriteRule
from namesrv.core.steps import Steps
from namesrv.core.table_edit import TableEdit

MAX_SAMPLE_TOPICS = 100
"""Topics that are named."""

TOPIC_SLICE = 300
"""Topics that are looked at before giving way: about a millisecond."""


def blast_radius(edit: TableEdit) -> Steps[BlastRadius]:
    """Measures an edit that is prepared and not published."""
    changed = 0
    losing: list[str] = []
    vanishing: list[str] = []
    others: list[str] = []
    for count, (topic, before, after, regrouped) in enumerate(edit.touched_topics(), 1):
        if count % TOPIC_SLICE == 0:
            yield
        if not regrouped and _shown(before) == _shown(after):
            continue
        changed += 1
        if not after:
            vanishing.append(topic)
        elif _has_writable(before) and not _has_writable(after):
            losing.append(topic)
        elif len(others) < MAX_SAMPLE_TOPICS:
            others.append(topic)
    worst = vanishing or losing or others
    sample = tuple(sorted(worst)[:MAX_SAMPLE_TOPICS])
    return BlastRadius(changed, len(losing), len(vanishing), sample)


def _shown(queues: tuple[tuple[QueueData, WriteRule], ...]) -> list[bytes]:
    return [queue_data.fragment_under(rule) for queue_data, rule in queues]


def _has_writable(queues: tuple[tuple[QueueData, WriteRule], ...]) -> bool:
    return any(queue_data.is_writable_under(rule) for queue_data, rule in queues)
