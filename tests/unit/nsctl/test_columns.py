"""The columns of `nsctl brokers`: each fact about a broker has one, or is known to have none."""

from __future__ import annotations

from namesrv_api.v1.route_data_pb2 import BrokerLiveInfo

from nsctl.commands.brokers import LIVE

NO_COLUMN = {
    *("heartbeat_timeout", "unconfirmed"),  # columns of `nsctl brokers` alone, not of `nsctl broker`
    *("ha_server_addr", "generation", "topic_by_topic", "doubt_ends_at", "doubt_reason"),  # in JSON
}


def test_each_field_of_a_live_broker_is_a_column_or_known_to_be_none() -> None:
    paths = (column.partition("=") for column in LIVE)
    columns = {(path or name).split(".")[0] for name, _, path in paths}
    assert {field.name.removesuffix("_millis") for field in BrokerLiveInfo.DESCRIPTOR.fields} == columns | NO_COLUMN
