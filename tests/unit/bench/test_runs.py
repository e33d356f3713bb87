"""The benchmarks run, with tiny tables, and their reports have what readers look for. No figure is judged here."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import pytest
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from bench import event_loop
from bench.core import __main__ as core
from bench.core.steps import new_routes, register
from bench.figures import Sample, own_output, summarise, table
from bench.naive_server import NaiveNamesrv
from bench.pipeline import __main__ as pipeline
from bench.probes.loop import LoopFigures, LoopProbe
from bench.probes.pauses import Pauses
from bench.workload import Profile, over_channel, registration, topic_name


@pytest.mark.parametrize("text", ["40x20", "40x20x-1", "ax20x1", "0x20x1", "40x20x21", "40x20x0"])
def test_the_core_benchmark_says_what_is_no_size_of_a_table(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        core.main(["--tables", text])
    assert repr(text) in capsys.readouterr().err


def test_what_java_prints_is_no_figure(capfd: pytest.CaptureFixture[str]) -> None:
    output = own_output()
    os.write(1, b"CodeCache: size=49152Kb\n")
    print("a figure", file=output)
    output.close()
    assert tuple(capfd.readouterr()) == ("a figure\n", "CodeCache: size=49152Kb\n")


def test_pipeline_writes_figures_before_a_later_workload_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pipeline.json"
    measured: dict[str, float] = {"small-read": 1.0}
    monkeypatch.setattr(pipeline, "samples_of", lambda name, _: [Sample(name, "takes", "s", measured[name])])
    monkeypatch.setattr(sys, "argv", ["bench.pipeline", "--json", str(file), "--only", "small-read", "bulk-s3"])
    with pytest.raises(KeyError):
        pipeline.main()
    assert [(one["workload"], one["values"]) for one in json.loads(file.read_text())["figures"]] == [
        ("small-read", [1.0])
    ]


def test_a_profile_is_the_same_at_each_run_and_as_wide_as_it_says() -> None:
    profile = Profile(30, 5, 3)
    assert list(profile.registrations()) == list(profile.registrations())
    registered = [registration_service_pb2.RegisterBrokerRequest.FromString(data) for data in profile.registrations()]
    names = [config.topic for request in registered for config in request.topic_configs]
    assert sorted(names) == sorted(topic_name(number) for number in range(30) for _ in range(3))
    assert set(profile.topic_names(100)) <= set(names)


def test_a_changed_profile_has_the_same_topics_with_other_queue_counts() -> None:
    profile = Profile(30, 5, 3)
    for usual, changed in zip(profile.registrations(), profile.registrations(counter=2, changed=True), strict=True):
        before = registration_service_pb2.RegisterBrokerRequest.FromString(usual)
        after = registration_service_pb2.RegisterBrokerRequest.FromString(changed)
        assert before.broker == after.broker
        assert before.data_version != after.data_version
        for old, new in zip(before.topic_configs, after.topic_configs, strict=True):
            assert old.topic == new.topic
            assert old.read_queue_nums != new.read_queue_nums


def test_a_registration_over_a_channel_is_the_same_with_the_channel() -> None:
    data = registration(7, range(3))
    request = registration_service_pb2.RegisterBrokerRequest.FromString(over_channel(data, "a channel"))
    assert request.channel_id == "a channel"
    request.ClearField("channel_id")
    assert request == registration_service_pb2.RegisterBrokerRequest.FromString(data)


def test_collections_are_counted_by_generation_while_the_block_runs_and_again_when_it_is_entered_again() -> None:
    pauses = Pauses()
    gc.collect(2)
    for _ in range(2):
        with pauses:
            gc.collect(2)
    gc.collect(2)
    assert pauses.runs[2] == 2
    assert pauses.longest_millis > 0
    pauses.clear()
    assert (pauses.runs, pauses.longest_millis) == ([0, 0, 0], 0.0)


def test_a_probe_counts_the_ticks_that_a_long_delay_left_out() -> None:
    probe = LoopProbe()
    for _ in range(900):
        probe.tick(late=-0.0001, busy=0.0002)
    probe.tick(late=0.1, busy=0.05)
    figures = probe.take()
    assert figures.longest_delay_millis == pytest.approx(100)
    assert figures.longest_busy_millis == pytest.approx(50)
    assert figures.p99_delay_millis == pytest.approx(91)  # of 1,000 ticks, 100 came 1 to 100 ms late


def test_a_probe_starts_again_when_its_figures_are_taken() -> None:
    probe = LoopProbe()
    probe.tick(late=0.1, busy=0.05)
    probe.take()
    assert probe.take() == LoopFigures(0, 0, 0, 0)
    probe.tick(late=0.002, busy=0.001)
    assert probe.take().longest_delay_millis == pytest.approx(2)


def test_a_delay_is_shown_beside_the_bar_with_the_rounds_that_kept_it() -> None:
    samples = [Sample("engine: phase", "event loop, longest delay", "ms", value) for value in (3.0, 9.0, 12.0)]
    assert event_loop.verdicts(summarise(samples)).splitlines() == [
        "event loop, longest delay   median    bar  kept",
        "engine: phase                    9  10 ms  in 2 of 3 rounds",
    ]


def test_the_naive_peer_gives_the_same_routes_as_the_name_server() -> None:
    profile = Profile(topics=20, brokers=5, width=3)
    peer = NaiveNamesrv()  # type: ignore[abstract]
    routes = new_routes()
    for data in profile.registrations():
        register(routes, data)
        peer.RegisterBroker(registration_service_pb2.RegisterBrokerRequest.FromString(data), None)
    for topic in set(profile.topic_names(50)):
        request = route_service_pb2.GetTopicRouteRequest(topic=topic)
        theirs = peer.GetTopicRoute(request, None)  # type: ignore[arg-type]
        encoded = routes.state.route(topic)
        assert encoded is not None
        ours = route_data_pb2.TopicRouteData.FromString(encoded)
        for route in (ours, theirs.route):
            route.queue_datas.sort(key=lambda queue: queue.broker_name)
            route.broker_datas.sort(key=lambda broker: broker.broker_name)
        assert ours == theirs.route


def test_a_table_shows_the_median_and_the_spread_under_its_workload() -> None:
    samples = [Sample("a workload", "a figure", "ms", value) for value in (3.0, 1.0, 2000.0)]
    assert table(summarise(samples)).splitlines() == [
        "  figure    median  min..max  unit",
        "a workload",
        "  a figure       3  1..2,000  ms",
    ]
