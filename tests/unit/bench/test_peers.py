"""What the comparison with other name servers sends and says, and what the guard lets pass."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from typing import Any

import pytest
from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from bench import guard
from bench.figures import Sample
from bench.load import cpu_seconds
from bench.peers import remoting
from bench.peers.calls import Call, Grpc, Remoting
from bench.peers.servers import VARIANTS, all_servers, askable_servers, described
from bench.peers.summary import errors_of
from bench.peers.workloads import all_workloads, clustered_table, spread_table
from bench.workload import Broker, Profile


def opened(frame: remoting.Frame) -> tuple[dict[str, Any], Any]:
    """Header and body of a frame, by the lengths that it says."""
    length, header_length = struct.unpack(">ii", frame.data[:8])
    assert len(frame.data) == 4 + length
    header = frame.data[8 : 8 + header_length]
    body = frame.data[8 + header_length :]
    return json.loads(header), json.loads(body) if body else None


def test_a_frame_says_its_lengths_and_where_its_number_is() -> None:
    frame = remoting.get_route("topic-000001")
    header, body = opened(frame)
    assert header["code"] == 105
    assert header["extFields"] == {"topic": "topic-000001"}
    assert body is None
    numbered = bytearray(frame.data)
    numbered[frame.opaque_at : frame.opaque_at + 10] = b"1234567890"
    assert opened(remoting.Frame(bytes(numbered), 0))[0]["opaque"] == 1_234_567_890


def test_both_protocols_register_the_same_topics_of_the_same_broker() -> None:
    header, body = opened(remoting.register(Broker(7), range(3), 8, counter=2))
    call = Grpc().register(7, range(3), counter=2)
    request = registration_service_pb2.RegisterBrokerRequest.FromString(call.data[5:])
    fields = header["extFields"]
    assert (fields["clusterName"], fields["brokerName"], fields["brokerAddr"], fields["brokerId"]) == (
        request.broker.cluster_name,
        request.broker.broker_name,
        request.broker.broker_addr,
        str(request.broker.broker_id),
    )
    wrapper = body["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"]["counter"] == request.data_version.counter == 2
    theirs = {
        (name, config["readQueueNums"], config["writeQueueNums"], config["perm"])
        for name, config in wrapper["topicConfigTable"].items()
    }
    ours = {
        (config.topic, config.read_queue_nums, config.write_queue_nums, config.perm) for config in request.topic_configs
    }
    assert theirs == ours


@pytest.mark.parametrize(("topics", "reported"), [(range(1), 2), (range(2), 2), (range(0), 0)])
def test_no_broker_registers_with_the_one_topic_that_rocketmq_takes_for_an_increment(
    topics: range, reported: int
) -> None:
    _, body = opened(remoting.register(Broker(7), topics, 8, counter=1))
    assert len(body["topicConfigSerializeWrapper"]["topicConfigTable"]) == reported


def test_a_registration_carries_the_checksum_that_rocketmq_checks() -> None:
    frame = remoting.register(Broker(0), range(2), 8, counter=1)
    _, header_length = struct.unpack(">ii", frame.data[:8])
    body = frame.data[8 + header_length :]
    assert opened(frame)[0]["extFields"]["bodyCrc32"] == str(zlib.crc32(body) & 0x7FFFFFFF)


def test_a_grpc_call_has_its_path_and_the_message_behind_its_length() -> None:
    call = Grpc().lookup(3)
    assert call.kind == "/namesrv_api.v1.RouteService/GetTopicRoute"
    compressed, length = struct.unpack(">BI", call.data[:5])
    assert (compressed, length) == (0, len(call.data) - 5)
    assert route_service_pb2.GetTopicRouteRequest.FromString(call.data[5:]).topic == "topic-000003"


@pytest.mark.parametrize("workload", all_workloads(0.002), ids=lambda workload: workload.name)
def test_every_workload_sends_the_same_calls_at_each_run_and_as_many_in_both_protocols(workload: Any) -> None:
    ours = workload.groups(workload.table, Grpc())
    assert workload.groups(workload.table, Grpc()) == ours
    theirs = workload.groups(workload.table, Remoting())
    if theirs:
        assert [len(group.calls) for group in theirs] == [len(group.calls) for group in ours]
        kinds = [[_short(call) for call in group.calls[:1_000]] for group in ours]
        assert [[call.kind for call in group.calls[:1_000]] for group in theirs] == kinds
    else:
        assert workload.name == "batches"


def _short(call: Call) -> str:
    return call.kind.rpartition("/")[2]


def test_a_clustered_table_gives_each_broker_all_topics_of_its_cluster() -> None:
    table = clustered_table(clusters=2, brokers=3, topics=10)
    assert table.topics == 20
    assert [list(topics) for topics in table.owners()] == [list(range(10)), list(range(10, 20))] * 3


def test_a_smaller_scale_makes_a_smaller_table_of_the_same_width() -> None:
    table = spread_table(Profile(1_000, 100, 4), 0.1)
    owners = table.owners()
    assert (table.topics, len(owners)) == (100, 10)
    assert sum(map(len, owners)) == 400


def test_errors_are_counted_by_kind_and_calls_without_answer_among_them() -> None:
    group = {"unanswered": 1, "kinds": {"GetTopicRoute": {"errors": {"grpc-status 14": 2}}}}
    assert errors_of({"groups": {"clients": group}}) == {"grpc-status 14": 2, "unanswered": 1}


COSTS = {guard.REGISTRATION: 0.3, guard.HIT: 1.2}


def ratios(factor: float) -> list[guard.Ratio]:
    """So many times what a call costs, measured in three rounds."""
    return [guard.Ratio(call, (cost * factor,) * 3, (1.0,) * 3) for call, cost in COSTS.items()]


def test_the_guard_lets_pass_what_costs_what_it_did_and_a_quarter_more() -> None:
    assert guard.judge(COSTS, ratios(1.0)) == []
    assert guard.judge(COSTS, ratios(1.25)) == []


def test_the_guard_names_every_call_that_costs_twice_as_much() -> None:
    findings = guard.judge(COSTS, ratios(2.0))
    assert len(findings) == 2
    assert "one unchanged registration costs 0.6 times the naive server's, and may cost 0.45" in findings[0]
    assert "one hit costs 2.4 times the null server's, and may cost 1.8" in findings[1]
    assert findings[1].endswith("rounds 2.4, 2.4, 2.4 beside 1, 1, 1")


def test_each_call_is_compared_with_the_server_of_its_own_kind_in_the_same_round() -> None:
    cpu = "ms CPU per 1,000"
    samples = [
        Sample(server, call, cpu, value * round_number)
        for round_number in (1, 2)
        for server, call, value in (
            ("naive", guard.REGISTRATION, 10.0),
            ("native", guard.REGISTRATION, 2.0),
            ("null", guard.HIT, 4.0),
            ("native", guard.HIT, 6.0),
        )
    ]
    ratios = sorted(guard.ratios_of(samples))
    assert ratios == [
        guard.Ratio(guard.HIT, (6.0, 12.0), (4.0, 8.0)),
        guard.Ratio(guard.REGISTRATION, (2.0, 4.0), (10.0, 20.0)),
    ]
    assert [ratio.value for ratio in ratios] == [1.5, 0.2]


def test_rounds_that_neighbours_disturbed_do_not_trip_the_guard() -> None:
    assert guard.judge(COSTS, [guard.Ratio(guard.HIT, (1.2, 6.0, 2.5), (1.4, 1.0, 1.3))]) == []


def test_a_call_that_costs_twice_as_much_trips_the_guard_through_disturbed_rounds_of_the_other_server() -> None:
    [finding] = guard.judge(COSTS, [guard.Ratio(guard.HIT, (2.4, 3.0, 2.6), (4.0, 1.0, 5.0))])
    assert "costs 2.4 times" in finding


def test_every_call_has_costs_to_be_held_to() -> None:
    assert guard.known_costs().keys() == {guard.REGISTRATION, guard.HIT, guard.MISS}


def test_processor_time_is_counted_finer_than_the_kernel_s_ticks() -> None:
    before = cpu_seconds([os.getpid()])
    ended = time.process_time() + 0.001
    while time.process_time() < ended:
        pass
    assert before < cpu_seconds([os.getpid()]) <= time.process_time()


def test_variants_of_native_are_measured_only_if_they_are_asked_for() -> None:
    assert not set(askable_servers()) - set(all_servers()) - {f"native{variant}" for variant in VARIANTS}
    assert not {f"native{variant}" for variant in VARIANTS} & set(all_servers())
    assert described("native+no-cache") == "namesrv serve --cache-bytes 0"
    assert described("native+tls") == "namesrv serve with TLS"
