"""What brokers and operators may send, few enough that they often meet: drawn for machines with a model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from namesrv.core.model import BrokerKey, DataVersion, HoldKey, IntentKey, Registration, StaticMapping
from namesrv_common.topic_names import Labels
from tests.unit.namesrv.reference_operators import SYNC_MEMBER_TOPIC

CLUSTERS = st.sampled_from(["c1", "c2"])
NAMES = st.sampled_from(["broker-a", "broker-b"])
GROUPS = st.builds(BrokerKey, CLUSTERS, NAMES)
ADDRS = st.sampled_from([f"10.0.0.{number}:10911" for number in range(1, 6)])
IDS = st.integers(0, 2)
VERSIONS = st.builds(DataVersion, st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
TOPICS_KNOWN = ("T1", "T2", "T3", SYNC_MEMBER_TOPIC)
TOPIC_NAMES = st.sampled_from(TOPICS_KNOWN)
NUMBERS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 4, 6]), st.integers(0, 3))
TOPICS = st.dictionaries(TOPIC_NAMES, NUMBERS, max_size=4)
MAPPINGS = st.builds(
    StaticMapping, st.just("__global__"), st.integers(0, 4), st.integers(0, 1), st.booleans(),
    st.sampled_from([(), ((0, 0),), ((0, 1), (2, 0))]),
)  # fmt: skip
"""Mappings of static topics."""
MAPPED = st.builds(lambda numbers, mapping: (*numbers, mapping), NUMBERS, MAPPINGS)
TABLES = st.dictionaries(TOPIC_NAMES, NUMBERS | MAPPED, max_size=4)
"""Of agents: a static topic comes with its mapping."""
LABELS: st.SearchStrategy[Labels | None] = st.sampled_from([None, (), (("rack", "r1"),), (("rack", "r2"),)])
REGISTRATIONS = st.builds(
    Registration,
    broker=GROUPS,
    broker_id=IDS,
    broker_addr=ADDRS,
    data_version=VERSIONS,
    topic_configs=TABLES,
    ha_server_addr=st.sampled_from([None, "10.0.0.9:1", "10.0.0.9:2"]),
    filter_servers=st.none() | st.lists(st.sampled_from(["f:1", "f:2"]), max_size=2, unique=True).map(tuple),
    base_version=st.none() | st.none() | VERSIONS,
    zone_name=st.sampled_from([None, None, "Z1", "z2"]),
    enable_acting_master=st.sampled_from([None, True, True, False]),
    labels=LABELS,
    timeout_seconds=st.sampled_from([None, None, 30.0, 300.0]),
)
"""Those of agents."""
PARTIAL_REGISTRATIONS = st.builds(
    replace,
    REGISTRATIONS,
    topic_configs=TOPICS,
    base_version=st.none(),
    labels=st.none(),
    topic_by_topic=st.just(True),
    mappings=st.dictionaries(TOPIC_NAMES, MAPPINGS, max_size=2),
)
"""Those of RocketMQ's own brokers."""
INTENT_KEYS: st.SearchStrategy[IntentKey] = GROUPS | st.builds(HoldKey, TOPIC_NAMES, st.none() | CLUSTERS)
