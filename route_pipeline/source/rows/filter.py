"""A filter of rows: the options ``topics`` and ``clusters``, and what Spark pushes down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

TOPIC, CLUSTER, BROKER = "topic", "cluster_name", "broker_name"
"""Columns that a filter may be on."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows by topic and cluster. Rows that are of no topic, as a broker's, are chosen by cluster alone."""

    topics: frozenset[str] = frozenset()
    """Wanted topics by name."""
    topic_prefixes: tuple[str, ...] = ()
    """Wanted topics by the beginning of their name. All are wanted if there are neither names nor prefixes."""
    clusters: frozenset[str] = frozenset()
    """Wanted clusters; all if there are none."""

    brokers: frozenset[str] = frozenset()
    """Wanted broker groups; all if there are none."""

    @classmethod
    def of(cls, topics: tuple[str, ...], clusters: tuple[str, ...]) -> RowFilter:
        """A filter from names, of which those of topics may end with ``*``."""
        return cls(
            frozenset(topic for topic in topics if not topic.endswith("*")),
            tuple(topic[:-1] for topic in topics if topic.endswith("*")),
            frozenset(clusters),
        )

    def wants_topic(self, topic: str) -> bool:
        """Whether rows of a topic are wanted."""
        if not self.topics and not self.topic_prefixes:
            return True
        return topic in self.topics or topic.startswith(self.topic_prefixes)

    def wants_group(self, cluster_name: str, broker_name: str | None) -> bool:
        """Whether rows of a broker group of a cluster are wanted; None: of a row that has no group."""
        if self.clusters and cluster_name not in self.clusters:
            return False
        return not self.brokers or broker_name is None or broker_name in self.brokers

    def narrowed(self, column: str, values: Iterable[str]) -> RowFilter:
        """The filter of rows that have one of some values in a column, too.

        A column that it knows nothing of, or values none of which it wants, leave it as it is: Spark looks at every row
        again.
        """
        if column == TOPIC:
            topics = frozenset(value for value in values if self.wants_topic(value))
            return replace(self, topics=topics, topic_prefixes=()) if topics else self
        known = {CLUSTER: self.clusters, BROKER: self.brokers}.get(column)
        if known is None:
            return self
        wanted = frozenset(value for value in values if not known or value in known)
        if not wanted:
            return self
        return replace(self, clusters=wanted) if column == CLUSTER else replace(self, brokers=wanted)

    def beginning(self, column: str, prefix: str) -> RowFilter:
        """The filter of rows whose topic begins with a prefix, too, if none was asked for by now."""
        if column != TOPIC or not prefix or self.topics or self.topic_prefixes:
            return self
        return replace(self, topic_prefixes=(prefix,))


EVERYTHING = RowFilter()
"""All rows."""
