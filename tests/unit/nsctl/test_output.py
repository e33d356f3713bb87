"""Messages of the contract as rows, their values in tables, and the columns that tables of brokers have."""

from __future__ import annotations

from io import StringIO

import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1.route_data_pb2 import BrokerLiveInfo
from rich.console import Console
from typer.core import TyperCommand

from nsctl.commands.show import LIVE
from nsctl.output import row, table
from nsctl.session import Session


def test_a_message_is_a_row_with_names_of_enums_and_times_but_without_what_is_absent() -> None:
    intent = admin_service_pb2.Intent(kind=admin_service_pb2.Intent.KIND_TOPIC_HOLD, topic="T", since_millis=1_000)
    assert row(intent) == {
        "kind": "TOPIC_HOLD",
        "broker_name": "",
        "topic": "T",
        "caller": "",
        "since": "1970-01-01T00:00:01.000Z",
        "comment": "",
        "awaits_registration": False,
    }


def test_an_enum_without_a_value_is_absent_and_one_of_a_newer_program_is_a_number() -> None:
    assert "kind" not in row(admin_service_pb2.Intent())
    assert row(admin_service_pb2.Intent(kind=999))["kind"] == "999"  # type: ignore[arg-type]


def test_a_duration_stays_a_number_and_messages_within_are_rows() -> None:
    version = route_data_pb2.DataVersion(timestamp_millis=1_000, counter=7)
    live = row(route_data_pb2.BrokerLiveInfo(heartbeat_timeout_millis=120_000, data_version=version))
    assert live["heartbeat_timeout_millis"] == 120_000
    assert live["data_version"] == {"timestamp": "1970-01-01T00:00:01.000Z", "counter": 7}


@pytest.mark.parametrize("millis", [1 << 62, -(1 << 62)])  # a broker may register any number
def test_a_time_beyond_the_calendar_is_its_number(millis: int) -> None:
    assert row(route_data_pb2.DataVersion(timestamp_millis=millis))["timestamp"] == f"{millis} ms"


def test_a_table_has_values_of_paths_under_titles_of_their_own() -> None:
    found = {"10.0.0.1:9876": "dots are no path", "in": {"a": 1.26}}
    out = StringIO()
    Console(file=out, width=200).print(table([found], ("10.0.0.1:9876", "who=in.a", "no=in.b.c")))
    for text in ("dots are no path", "1.3", "WHO", "-"):
        assert text in out.getvalue()


NAME = "broker-" + "0123456789" * 20


def test_a_name_is_whole_on_a_line_where_nobody_looks_at_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"name": NAME, "at": "2026-01-01T00:00:00.000Z", "text": "word " * 100}
    Session(TyperCommand("route")).show([told], ("name", "at", "text"))
    assert f" {NAME}   2026-01-01T00:00:00.000Z   word word" in capsys.readouterr().out


def test_times_and_numbers_are_not_broken_over_lines_of_a_terminal() -> None:
    out = StringIO()
    Console(file=out, width=60).print(
        table([{"at": "2026-01-01T00:00:00.000Z", "text": "word " * 100}], ("at", "text"))
    )
    assert "2026-01-01T00:00:00.000Z" in out.getvalue()


def test_labels_are_texts_in_json_and_in_tables_of_brokers_and_addresses() -> None:
    labels = {"row": "7", "rack": "r1"}
    live = row(route_data_pb2.BrokerLiveInfo(broker_name="b", labels=labels))
    assert live["labels"] == ["rack=r1", "row=7"]
    addrs = [
        route_data_pb2.BrokerAddr(broker_id=0, broker_addr="h:1", labels=labels),
        route_data_pb2.BrokerAddr(broker_id=1, broker_addr="h:2"),
    ]
    drawn = table([live | row(route_data_pb2.BrokerData(broker_addrs=addrs))], ("labels", "addresses=broker_addrs"))
    assert [list(column.cells) for column in drawn.columns] == [
        ["rack=r1, row=7"],
        ["0: h:1: rack=r1 row=7, 1: h:2"],
    ]


NO_COLUMN = {
    *("heartbeat_timeout", "unconfirmed"),  # columns of `nsctl brokers` alone, not of `nsctl broker`
    *("ha_server_addr", "generation", "topic_by_topic", "doubt_ends_at", "doubt_reason"),  # in JSON
}


def test_each_field_of_a_live_broker_is_a_column_or_known_to_be_none() -> None:
    paths = (column.partition("=") for column in LIVE)
    columns = {(path or name).split(".")[0] for name, _, path in paths}
    assert {field.name.removesuffix("_millis") for field in BrokerLiveInfo.DESCRIPTOR.fields} == columns | NO_COLUMN
