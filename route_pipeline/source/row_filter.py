"""A filter of rows: the options ``topics`` and ``clusters``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows by topic and cluster. Rows that are of no topic, as a broker's, are chosen by cluster alone."""

    topics: frozenset[str] = frozenset()
    """Wanted topics by name."""
    topic_prefixes: tuple[str, ...] = ()
    """Wanted topics by the beginning of their name. All are wanted if there are neither names nor prefixes."""
    clusters: frozenset[str] = frozenset()
    """Wanted clusters; all if there are none."""

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

    def wants_cluster(self, cluster_name: str) -> bool:
        """Whether rows of a cluster are wanted."""
        return not self.clusters or cluster_name in self.clusters


EVERYTHING = RowFilter()
"""All rows."""
