"""Endpoints and lists of them: one rule everywhere."""

from __future__ import annotations

import pytest

from namesrv_common.endpoints import LOOPBACK, Endpoint, owner_of, parse_endpoints


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1,b:2", "a:1 b:2", "a:1; b:2", "a:1 ,b:2", " a:1\n\tb:2 ", "a:1  b:2"])
def test_semicolons_commas_and_white_space_all_separate(text: str) -> None:
    assert parse_endpoints(text) == (Endpoint("a", 1), Endpoint("b", 2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
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
def test_a_bad_list_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_endpoints(text)


def test_no_text_at_all_is_an_empty_list() -> None:
    with pytest.raises(ValueError, match="is empty"):
        parse_endpoints([])


def test_an_endpoint_is_written_as_it_is_read() -> None:
    for text in ("host:1", "127.0.0.1:9876", "[::1]:9876", "[fe80::1%eth0]:1"):
        assert str(Endpoint.parse(text)) == text


def test_the_port_follows_the_last_colon_of_an_ipv6_address() -> None:
    assert Endpoint.parse("fd00::1:7a:10911") == Endpoint("fd00::1:7a", 10911)
    assert Endpoint.parse("fe80::1%eth0:1") == Endpoint("fe80::1%eth0", 1)


def test_loopback_is_known_by_address_and_by_name() -> None:
    loopback = [Endpoint.parse(text).is_loopback for text in ("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1")]
    beyond = [Endpoint.parse(text).is_loopback for text in ("0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.com:1")]
    assert loopback == [True] * 4
    assert beyond == [False] * 4


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("127.0.0.1", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_address_counts_for_itself_its_site_or_loopback(address: str, owner: str) -> None:
    assert owner_of(address) == owner
