"""Names of topics: their rules and kinds. Labels of brokers: the rules of Kubernetes. Addresses."""

from __future__ import annotations

import pytest

from namesrv_common.endpoints import Endpoint, parse_endpoints
from namesrv_common.topic_names import (
    MAX_NAME_LENGTH,
    TopicKind,
    application_first,
    check_name,
    check_topic,
    kind_of,
    label_problem,
)

LONGEST_POP_RETRY = "%RETRY%" + "g" * 255 + "+" + "t" * 127


@pytest.mark.parametrize("name", ["订单", "a b", "|%-_+/@:", LONGEST_POP_RETRY])
def test_good_names_are_given_back(name: str) -> None:
    assert check_topic(name) == name
    assert check_name(name[:MAX_NAME_LENGTH]) == name[:MAX_NAME_LENGTH]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "^is empty"),
        ("x" * 401, r"^'x{40}'\.\.\. has 401 bytes, at most 400"),
        ("单" * 134, "has 402 bytes, at most 400"),
        ("T\n", r"^'T\\n' has characters that are not printable"),
        ("\ud800", "has characters that are not printable"),
    ],
)
def test_bad_names_are_refused_with_the_rule(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_topic(name)


TOPICS = {
    TopicKind.NORMAL: "orders orders%RETRY% _REPLY_TOPIC west_REPLY_TOPIC",
    TopicKind.RETRY: "%RETRY%billing",
    TopicKind.DEAD_LETTER: "%DLQ%billing",
    TopicKind.SYSTEM: "SCHEDULE_TOPIC_XXXX BenchmarkTest CHECKPOINT_TOPIC DefaultHeartBeatSyncerTopic TBW102 "
    "OFFSET_MOVED_EVENT SELF_TEST_TOPIC TRANS_CHECK_MAX_TIME_TOPIC RMQ_SYS_TRACE_TOPIC rmq_sys_wheel_timer "
    "east broker-a east_REPLY_TOPIC",
}


@pytest.mark.parametrize(("kind", "topic"), [(kind, name) for kind, names in TOPICS.items() for name in names.split()])
def test_a_kind_goes_by_conventions_and_the_names_of_clusters_and_brokers(topic: str, kind: TopicKind) -> None:
    assert kind_of(topic, {"east", "broker-a"}) is kind


def test_lists_have_applications_topics_first() -> None:
    topics = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "broker-a", "east", "orders", "Zebra"]
    in_order = ["Zebra", "orders", "%DLQ%g", "%RETRY%g", "BenchmarkTest", "broker-a", "east"]
    assert application_first(topics, {"east", "broker-a"}) == in_order


LONGEST_PREFIX = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("rack=r1", "None"),
        ("rack=", "None"),
        ("topology.kubernetes.io/zone=eu-1_A.b", "None"),
        (f"{'k' * 63}={'v' * 63}", "None"),
        (f"{LONGEST_PREFIX}/0=0", "None"),
        ("=v", "name '' must have ASCII letters"),
        ("/rack=v", "prefix '' must be a DNS subdomain"),
        ("a/b/c=v", "prefix 'a/b' must be a DNS subdomain"),
        ("Example.com/rack=v", "prefix 'Example.com' must be a DNS subdomain"),
        ("-rack=v", "a letter or digit at both ends"),
        ("rack\n=v", r"name 'rack\n' must have ASCII letters"),
        ("räck=v", "name 'räck' must have ASCII letters"),
        ("k" * 100 + "=v", f"has the key '{'k' * 70}', whose name has 100 characters, at most 63"),
        (f"{LONGEST_PREFIX}d/k=v", "prefix has 254 characters, at most 253"),
        ("rack=" + "v" * 64, "has the key 'rack', whose value has 64 characters, at most 63"),
        ("rack=r 1", "has the key 'rack', whose value 'r 1' must have ASCII letters"),
    ],
)
def test_labels_of_kubernetes_are_taken_and_others_refused_with_the_rule(label: str, problem: str) -> None:
    key, _, value = label.partition("=")
    assert problem in str(label_problem({key: value}))


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1,b:2", "a:1 b:2", "a:1; b:2", "a:1 ,b:2", " a:1\n\tb:2 ", "a:1  b:2"])
def test_semicolons_commas_and_white_space_all_separate(text: str) -> None:
    assert parse_endpoints(text) == (Endpoint("a", 1), Endpoint("b", 2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ([], "is empty"),
        ("", "empty element"),
        ("a:1;;b:2", "empty element"),
        ("a", "has no port"),
        ("a:0", "not a number from 1 to 65535"),
        ("a:01", "without leading zeros"),
        ("a:1_0", "not a number from 1 to 65535"),
        ("a:\u0661", "not a number from 1 to 65535"),
        (":1", "no valid host"),
        ("fe80::1%:9876", "no valid host"),
        ("[xyz]:1", "no valid host"),
        ("http://a:1", "no valid host"),
        ("a:1;a:1", "has a:1 twice"),
    ],
)
def test_a_bad_list_says_what_is_wrong(text: str | list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_endpoints(text)


LOOPBACK = ("127.0.0.1:1", "127.8.8.8:1", "[::1]:9876", "localhost:1")
BEYOND = ("0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[fe80::1%eth0]:1", "example.com:9876")


@pytest.mark.parametrize("text", [*LOOPBACK, *BEYOND])
def test_an_endpoint_is_written_as_it_is_read_and_known_as_loopback(text: str) -> None:
    endpoint = Endpoint.parse(text)
    assert str(endpoint) == text
    assert Endpoint.parse(text.translate({ord("["): "", ord("]"): ""})) == endpoint, "brackets are optional"
    assert endpoint.is_loopback == (text in LOOPBACK)
