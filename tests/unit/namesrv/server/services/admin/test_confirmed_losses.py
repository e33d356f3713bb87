"""Losses that an operator confirms: all that the guard holds, or one group by its name."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv.core.errors import Reason
from namesrv.core.model import Doubt
from tests.support.core_fleet import CLUSTER
from tests.unit.namesrv.worlds.operator_calls import Operator, operator

__all__ = ["operator"]  # pytest finds the fixture by its name in this module


@pytest.fixture
def lossy(operator: Operator) -> Operator:
    """Four groups. The guard holds three of them; one is known only from a snapshot file."""
    channels = [operator.fleet.heartbeats.open_channel() for _ in range(4)]
    for number, channel_id in enumerate(channels):
        operator.fleet.register(f"127.0.0.{number + 1}:1", name=f"broker-{number}", channel_id=channel_id)
    for channel_id in channels[:3]:
        operator.fleet.end_channel(channel_id)
    first = next(iter(operator.state.unconfirmed))
    operator.state.doubts[first] = Doubt.SNAPSHOT_FILE
    return operator


def test_without_a_name_all_that_the_guard_holds_is_confirmed_and_nothing_else(lossy: Operator) -> None:
    validated = lossy.call(pb.ConfirmBrokerLossRequest(validate_only=True))
    assert len(lossy.state.unconfirmed) == 3
    with capture_logs() as logs:
        answer = lossy.call(pb.ConfirmBrokerLossRequest(comment="fire"))
    assert answer.removed_broker_count == validated.removed_broker_count == 2
    assert answer.blast_radius == validated.blast_radius
    assert answer.blast_radius.topics_changed == 1
    assert [(line["event"], line["reason"]) for line in logs] == [("broker_removed", "LOSS_CONFIRMED")] * 2
    assert list(lossy.state.unconfirmed.values()) == [Doubt.SNAPSHOT_FILE]
    assert lossy.state.change_log.last.cause.comment == "fire"
    lossy.refused(pb.ConfirmBrokerLossRequest(), Reason.INTENT_NOT_FOUND)


def test_a_group_is_confirmed_by_its_name_whatever_keeps_it(lossy: Operator) -> None:
    names = {live.broker.broker_name for live in lossy.state.tables.broker_live_table.values() if live.unconfirmed}
    for left, name in zip((2, 1, 0), sorted(names), strict=True):
        request = pb.ConfirmBrokerLossRequest(broker_name=name, cluster_name=CLUSTER)
        assert lossy.call(request).removed_broker_count == 1
        assert len(lossy.state.unconfirmed) == left


def test_a_loss_that_nobody_suffered_is_an_error_that_names_the_group(lossy: Operator) -> None:
    error = lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="broker-3"), Reason.INTENT_NOT_FOUND)
    assert error.metadata == {"broker_name": "broker-3"}
    lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="broker-0", cluster_name="other"), Reason.INTENT_NOT_FOUND)
    lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="nobody"), Reason.INTENT_NOT_FOUND)
