"""The tables of a name server."""

from __future__ import annotations

from dataclasses import dataclass, field

from namesrv.core.records.rows import BrokerData, BrokerKey, BrokerLiveInfo, LiveKey, QueueData, TableMark
from namesrv.core.tables.queue_data import QueueDataTable
from namesrv.core.tables.topics import TopicTable


@dataclass(slots=True)
class Tables:
    """The five tables of RocketMQ's RouteInfoManager, and what belongs to them."""

    topic_queue_table: TopicTable = field(default_factory=TopicTable)
    broker_addr_table: dict[BrokerKey, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    clusters_by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    """Clusters that have a group of a name, in the order in which these groups came. RocketMQ's protocol, on which a
    route has no cluster, shows the first."""
    broker_live_table: dict[LiveKey, BrokerLiveInfo] = field(default_factory=dict)
    filter_server_table: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    topics_by_broker: dict[BrokerKey, dict[str, None]] = field(default_factory=dict)
    """Topics that have queues on each group, so that losing a broker does not walk all topics. Dictionaries from names
    to None, because the garbage collector looks at sets and not at these.
    """
    held_queue_table: dict[str, dict[BrokerKey, QueueData]] = field(default_factory=dict)
    """What brokers report of topics that operators hold back, by topic."""
    held_version: int = 0
    """Rises with every change of ``held_queue_table``, which no change log has."""
    table_marks: dict[BrokerKey, TableMark] = field(default_factory=dict)
    """Groups of which all is here, or held back, that the table of a mark says. Whatever changes a group's queues
    takes its mark away."""
    queue_datas: QueueDataTable = field(default_factory=QueueDataTable)
