"""Labels of brokers in tables, in JSON and on the console's page."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from nsctl.commands.brokers import LIVE
from nsctl.output import row, table


def test_labels_are_texts_in_json_and_in_tables() -> None:
    live = route_data_pb2.BrokerLiveInfo(broker_name="b", labels={"row": "7", "rack": "r1"})
    assert row(live)["labels"] == ["rack=r1", "row=7"]
    drawn = table([row(live)], LIVE)
    (labels,) = (column for column in drawn.columns if column.header == "LABELS")
    assert list(labels.cells) == ["rack=r1, row=7"]


def test_an_address_of_a_group_has_its_labels_after_it_if_there_are_any() -> None:
    addrs = [
        route_data_pb2.BrokerAddr(broker_id=0, broker_addr="h:1", labels={"rack": "r1", "row": "7"}),
        route_data_pb2.BrokerAddr(broker_id=1, broker_addr="h:2"),
    ]
    drawn = table([row(route_data_pb2.BrokerData(broker_addrs=addrs))], ("addresses=broker_addrs",))
    assert list(drawn.columns[0].cells) == ["0: h:1: rack=r1 row=7, 1: h:2"]
