"""RouteLookup against real name servers: failing over, sticking, and telling errors apart."""

from __future__ import annotations

import random

import pytest

from route_client import NoNamesrvAnsweredError, RouteLookup, RouteLookupError, TopicNotFoundError
from tests.processes import NamesrvProcess
from tests.registrations import registration

NOBODY = "127.0.0.1:1"


@pytest.fixture
def filled(namesrv: NamesrvProcess) -> NamesrvProcess:
    with namesrv.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=20)
    return namesrv


def test_a_route_comes_from_whichever_name_server_answers_and_that_one_is_asked_first_from_then_on(
    filled: NamesrvProcess,
) -> None:
    for seed in range(4):  # either order of the two
        with RouteLookup([NOBODY, str(filled.endpoint)], rng=random.Random(seed)) as lookup:
            answer = lookup.route("TopicTest")
            assert answer.header.namesrv_name == str(filled.endpoint)
            assert answer.route.broker_datas[0].broker_name == "broker-a"
            assert lookup.endpoints[0] == filled.endpoint


def test_an_unknown_topic_is_told_from_a_bad_name(filled: NamesrvProcess) -> None:
    with RouteLookup(str(filled.endpoint)) as lookup:
        with pytest.raises(TopicNotFoundError, match="nobody-has-this"):
            lookup.route("nobody-has-this")
        with pytest.raises(RouteLookupError, match="INVALID_FIELD"):
            lookup.route("not a name")


def test_where_nobody_answers_each_error_is_named() -> None:
    with RouteLookup(f"{NOBODY};127.0.0.1:2", timeout_seconds=5) as lookup:
        with pytest.raises(NoNamesrvAnsweredError, match=r"127.0.0.1:1: UNAVAILABLE.*") as caught:
            lookup.route("TopicTest")
        assert {str(endpoint) for endpoint in caught.value.errors} == {NOBODY, "127.0.0.1:2"}


def test_a_bad_list_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="has no port"):
        RouteLookup("nowhere")
