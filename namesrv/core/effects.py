"""The effect of a transaction on the routes, measured once it is prepared and before it is published."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from namesrv.core.model import BlastRadius, QueueData, TopicsInUse, WriteRule
from namesrv.core.pace import paced
from namesrv.core.transaction import Transaction
from namesrv_common.topic_names import is_application, listing_order

MAX_SAMPLE_TOPICS = 100
"""Most topics that are named."""

Queues = tuple[tuple[QueueData, WriteRule], ...]
"""A topic's queues, each with the rule of its group."""


def effect_of(transaction: Transaction) -> tuple[BlastRadius, TopicsInUse]:
    """Measures how many routes change, and which topics of applications producers can use no longer.

    Only an application's topic loses its last writable queue: no producer misses a broker's own, such as the one that
    is named after it.
    """
    named_after = transaction.index.names_of_groups()
    vanishing, losing, others, in_use = (list[str]() for _ in range(4))
    for topic, before, after, regrouped in _touched_topics(transaction):
        is_of_application = is_application(topic, named_after)
        if is_of_application and _is_taken(transaction, before, after):
            in_use.append(topic)
        if not regrouped and _shown(before) == _shown(after):
            continue
        if not after:
            vanishing.append(topic)
        elif is_of_application and _has_writable(before) and not _has_writable(after):
            losing.append(topic)
        else:
            others.append(topic)

    def sample(topics: Iterable[str]) -> tuple[str, ...]:
        first = nsmallest(MAX_SAMPLE_TOPICS, paced(topics), key=lambda topic: listing_order(topic, named_after))
        return tuple(first)

    changed = len(vanishing) + len(losing) + len(others)
    radius = BlastRadius(changed, len(losing), len(vanishing), sample(vanishing or losing or others))
    return radius, TopicsInUse(len(in_use), sample(in_use))


def _touched_topics(transaction: Transaction) -> Iterator[tuple[str, Queues, Queues, bool]]:
    """Topics whose route may change, before and after, and whether one of their groups gets other addresses."""
    find, published = transaction.index.queue_datas.of, transaction.tables.broker_addr_table
    regrouped = {
        key
        for key, group in transaction.groups.items()
        if group is not None and key in published and published[key].addrs != group.addrs
    }
    topics: Iterator[str] = itertools.chain(
        itertools.chain.from_iterable(transaction.put.values()),
        itertools.chain.from_iterable(queues for queues, _ in transaction.removed.values()),
        itertools.chain.from_iterable(transaction.index.topics_by_broker.get(key, ()) for key in regrouped),
    )
    seen: set[str] = set()
    for topic in paced(topics):
        if topic in seen:
            continue
        seen.add(topic)
        before = map(find, transaction.tables.topic_queue_table.get(topic) or ())
        after = tuple(map(find, transaction.queues_of(topic) or ()))
        yield (
            topic,
            tuple((queue_data, published[queue_data.broker].write) for queue_data in before),
            tuple((queue_data, transaction.write_rule(queue_data.broker)) for queue_data in after),
            not regrouped.isdisjoint(queue_data.broker for queue_data in after),
        )


def _is_taken(transaction: Transaction, before: Queues, after: Queues) -> bool:
    """Whether producers lose a topic: no group with a master is left that can be written to.

    They also lose it if queues go that a group reports as writable, because they may be using these.
    """
    left = {queue_data.broker for queue_data, _ in after}
    gone = ((queue_data, rule) for queue_data, rule in before if queue_data.broker not in left)
    if any(data.is_writable_under(rule) or data.is_writable_under(WriteRule.REPORTED) for data, rule in gone):
        return True
    return _takes_messages(transaction, before) and not _takes_messages(transaction, after)


def _takes_messages(transaction: Transaction, queues: Queues) -> bool:
    """Whether a producer finds a writable queue: clients ask only masters to store messages."""
    groups = transaction.tables.broker_addr_table
    return any(data.is_writable_under(rule) and groups[data.broker].has_master for data, rule in queues)


def _shown(queues: Queues) -> list[bytes]:
    return [queue_data.fragment_under(rule) for queue_data, rule in queues]


def _has_writable(queues: Queues) -> bool:
    return any(queue_data.is_writable_under(rule) for queue_data, rule in queues)
