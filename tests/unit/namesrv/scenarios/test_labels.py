"""Labels of brokers, from the request to routes and changes. RocketMQ has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.changes import GroupChange, LiveChange
from namesrv.core.errors import Reason
from namesrv.core.journal import summary
from namesrv.core.model import BrokerKey, RegisterBrokerResult, Registration
from namesrv.core.registrations import BrokerRegistration
from namesrv.grpc_api.registration import read_registration
from namesrv_common.topic_names import MAX_LABELS, Labels
from tests.support.core_fleet import CLUSTER, VERSION, A, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.unit.namesrv.scenarios.groups import known_route

R1: Labels = (("rack", "r1"),)
R2: Labels = (("rack", "r2"), ("row", "7"))
FIRST = Registration(BrokerKey(CLUSTER, "broker-a"), 0, A, VERSION, {"TopicTest": (4, 4, 6, 0)})


def register(fleet: Fleet, labels: Labels | None) -> RegisterBrokerResult:
    return apply_now(BrokerRegistration(fleet.state, replace(FIRST, labels=labels)))


def read(labels: dict[str, str] | None) -> Labels | None:
    """The labels of a request."""
    request = pb.RegisterBrokerRequest(
        broker=route_data_pb2.BrokerIdentity(cluster_name="c", broker_name="b", broker_id=0, broker_addr=A),
        data_version=route_data_pb2.DataVersion(timestamp_millis=1, counter=1),
        labels=None if labels is None else pb.BrokerLabels(labels=labels),
    )
    return read_registration(request).labels


def test_labels_of_a_request_are_absent_empty_or_checked() -> None:
    most = {f"key-{number:02}": "v" for number in range(MAX_LABELS)}
    assert (read(None), read({}), read(most)) == (None, (), tuple(most.items()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read({**most, "one-more": ""})
    assert caught.value.metadata == {"name": "labels of a broker", "value": "17", "limit": "16"}
    with refuses(Reason.INVALID_FIELD, match=r"labels\.labels: has the key 'rack', whose value has 64 characters"):
        read({"rack": "v" * 64})


def test_other_labels_under_the_same_version_are_a_change(fleet: Fleet) -> None:
    register(fleet, R1)
    fleet.register(B, 1)
    revision = fleet.state.revision
    assert register(fleet, R2).changed
    (group,) = known_route(fleet).broker_datas
    assert [dict(broker.labels) for broker in group.broker_addrs] == [dict(R2), {}]
    change = fleet.state.change_log.after(revision)
    assert change is not None
    assert {type(row) for row in change.rows} == {GroupChange, LiveChange}
    assert summary(change).endswith("labels are rack=r2 (id 0), row=7 (id 0) now")
    assert not register(fleet, R2).changed


@pytest.mark.parametrize(("said", "left"), [(None, R1), ((), ())])
def test_no_labels_leave_those_of_a_broker_and_empty_ones_remove_them(
    fleet: Fleet, said: Labels | None, left: Labels
) -> None:
    register(fleet, R1)
    register(fleet, said)
    (group,) = known_route(fleet).broker_datas
    assert [dict(broker.labels) for broker in group.broker_addrs] == [dict(left)]
