"""Lists that must name everything of a kind, compared with the code that has it: nothing new is forgotten in them."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module, resources
from pkgutil import iter_modules
from typing import get_args

import namesrv_api.v1
import namesrv_internal.v1
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_data_pb2

from namesrv import storage
from namesrv.app import access
from namesrv.core.changes import IntentChange, KvChange, Row, SettingChange
from namesrv.core.model import IntentKind, Registration
from namesrv.core.watch import messages
from namesrv.server.server import SERVICES
from namesrv.storage.data_dir import LOCK_FILE
from namesrv.storage.database import KV_CONFIG_FILE
from namesrv.storage.tables import TABLES
from nsctl.commands import configuration, doctor
from nsctl.held import INTENT_WORDS
from route_client import route
from route_pipeline import questions
from route_pipeline.schemas import CHANGE_COLUMNS
from tests.faults.owned_files import CONTENTS, OWNED

READ_DIFFERENTLY = {
    "broker",  # the identity, field by field
    "body_crc32",  # a checksum of the others
    "heartbeat_timeout_millis",  # timeout_seconds
    *("last_update_timestamp_millis", "doubt_ends_at_millis", "doubt_reason"),  # liveness, not what a broker says
    *("data_version", "topic_by_topic"),  # three columns, and a fact about the protocol
}
"""Fields of a broker's messages that have another name where they are read, or no reader there."""
OF_THE_LOG = {"op", "from_snapshot", "changed_at", "epoch", "revision", "reason", "after_revision", "warm"}
"""Columns about a change, which the history has as the beginning or the end of a version, or not at all."""
OF_THE_KEY = {"namesrv", "snapshot", "table_name", "key", "topic", "cluster_name", "broker_addr"}
RENEWED = {"generation", "has_channel"}
"""Columns that change with each registration, and begin no version."""
IN_NO_TABLE: set[type[Row]] = {KvChange, IntentChange, SettingChange}
"""Rows that readers of the routes do not get."""
TABLE_NAMES = {table.name for table in TABLES}


def files() -> set[str]:
    """The names of all files that a name server writes into a data directory."""
    modules = (import_module(module.name) for module in iter_modules(storage.__path__, "namesrv.storage."))
    constants = (constant for module in modules for constant in vars(module).items())
    return {value for name, value in constants if name.endswith("_FILE") and isinstance(value, str)} - {KV_CONFIG_FILE}


def test_the_suite_of_crashes_has_every_file_and_durable_table() -> None:
    assert files() - {LOCK_FILE} <= OWNED.keys()
    assert CONTENTS.keys() == TABLE_NAMES


def names(message: type[Message]) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields} - READ_DIFFERENTLY


def test_every_field_of_a_broker_is_read_by_each_program_that_shows_it() -> None:
    columns = {column.name for column in CHANGE_COLUMNS}
    assert names(registration_service_pb2.RegisterBrokerRequest) <= {each.name for each in fields(Registration)}
    assert names(route_data_pb2.BrokerData) <= columns & {each.name for each in fields(route.BrokerData)}
    assert names(route_data_pb2.BrokerLiveInfo) <= columns


def test_every_column_is_in_the_history_and_another_value_begins_a_version() -> None:
    columns = {column.name for column in CHANGE_COLUMNS} - OF_THE_LOG
    views = resources.files("route_pipeline").joinpath("sql/views.sql").read_text(encoding="utf-8")
    (history,) = re.findall(r"select namesrv, table_name, key,.*?from followed", views, re.DOTALL)
    assert columns <= set(re.findall(r"\w+", history))
    assert set(re.findall(r"\w+", questions._CONTENT)) == columns - OF_THE_KEY - RENEWED


def test_every_row_of_a_change_is_of_a_table_of_readers_or_of_none() -> None:
    assert messages._CHANGED_BY.keys() ^ IN_NO_TABLE == set(get_args(Row))


def test_every_service_is_served_and_has_a_permission() -> None:
    services: set[ServiceDescriptor] = {
        service
        for package in (namesrv_api.v1, namesrv_internal.v1)
        for module in iter_modules(package.__path__, f"{package.__name__}.")
        if module.name.endswith("_pb2")
        for service in import_module(module.name).DESCRIPTOR.services_by_name.values()
    }
    assert services == set(SERVICES)
    assert {service.name for service in services} == access._PERMISSIONS.keys()


def test_every_kind_of_intent_is_on_the_wire_and_has_words_in_tools() -> None:
    on_the_wire = {kind.removeprefix("KIND_"): number for kind, number in admin_service_pb2.Intent.Kind.items()}
    del on_the_wire["UNSPECIFIED"]
    assert {kind.name: kind.value for kind in IntentKind} == on_the_wire
    assert INTENT_WORDS.keys() == set(on_the_wire.values())
    for kind in IntentKind:
        intent = admin_service_pb2.Intent(kind=f"KIND_{kind.name}", broker_name="broker-a", topic="topic")
        assert "unknown" not in doctor._subject(intent)[0]
        assert configuration._of_intent(intent) is not None
