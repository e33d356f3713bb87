"""What is counted where it happens."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.app.counters import DurationCounter, RegistrationCounter, kind_of

BASE = route_data_pb2.DataVersion(counter=1)
TOPICS = [route_data_pb2.TopicConfig(topic="T")]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (pb.RegisterBrokerRequest(topic_configs=TOPICS), "full"),
        (pb.RegisterBrokerRequest(), "full"),
        (pb.RegisterBrokerRequest(base_version=BASE, topic_configs=TOPICS), "increment"),
        (pb.RegisterBrokerRequest(base_version=BASE), "refresh"),
    ],
)
def test_the_kind_of_a_registration_is_what_it_carries(request_: pb.RegisterBrokerRequest, kind: str) -> None:
    assert kind_of(request_) == kind


def test_a_registration_is_counted_with_its_outcome_and_as_refused_if_it_raises() -> None:
    tally = RegistrationCounter()
    with tally.counting("full") as outcome:
        outcome.result = "changed"
    with pytest.raises(ValueError, match="no"), tally.counting("full"):
        raise ValueError("no")
    assert +tally.counts == {("full", "changed"): 1, ("full", "refused"): 1}


def test_a_duration_is_in_its_bucket_and_all_above() -> None:
    tally = DurationCounter((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        tally.add(seconds)
    assert tally.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert tally.total == 12.0
