"""Permits: what a file grants, and to whom."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from namesrv_common.errors import CommonReason, Refused
from namesrv_common.server.permits import (
    MAX_PERMITS_FILE_BYTES,
    MAX_PRINCIPALS,
    BrokerPattern,
    NamedBroker,
    Permission,
    Permits,
    PermitsError,
    Principal,
    of_certificate,
    of_token,
    read_permits,
    warn_of_permits,
)
from tests.support.refusals import refuses
from tests.support.secured.fleet import digest

TOML = """
[principals.broker-a]
certificates = ["spiffe://prod/broker-a", "broker-a.example"]
look_up = true
register = ["DefaultCluster/broker-a", "Test*/*"]

[principals."ops@example"]
token_sha256 = ["{digest}"]
administer = true
"""


@pytest.fixture
def permits(tmp_path: Path) -> Permits:
    path = tmp_path / "permits.toml"
    path.write_text(TOML.format(digest=digest("secret").upper()))
    return read_permits(path)


def shown(*authorizations: str) -> Any:
    """A call with these values of ``authorization``."""
    metadata = [("other", "Bearer secret"), *(("authorization", value) for value in authorizations)]
    return SimpleNamespace(invocation_metadata=lambda: metadata)


def is_allowed(check: Callable[[], None]) -> bool:
    """Whether a check passes; it may fail only with NOT_PERMITTED."""
    try:
        check()
    except Refused as error:
        if error.reason != CommonReason.NOT_PERMITTED:
            raise
        return False
    return True


def test_who_shows_certificate_or_token_may_do_what_is_granted_alone(permits: Permits) -> None:
    broker = of_certificate(["x", "spiffe://prod/broker-a"], permits)
    assert of_certificate(["broker-a.example"], permits) is broker
    assert of_certificate(["broker-a", "BROKER-A.EXAMPLE"], permits) == Principal("broker-a")
    ops = of_token(shown("Bearer secret"), permits)
    assert ops is not None
    assert of_token(shown("bEARER secret"), permits) is ops
    assert of_token(shown(), permits) is None
    granted = {who.name: [each for each in Permission if is_allowed(partial(who.check, each))] for who in (broker, ops)}
    assert granted == {"broker-a": [Permission.LOOKUP, Permission.REGISTER], "ops@example": [Permission.ADMINISTER]}
    groups = [("DefaultCluster", "broker-a"), ("TestEast", "anything")]
    others = [("DefaultCluster", "broker-ab"), ("XTest", "anything"), ("Test", "x/y"), ("", "DefaultCluster/broker-a")]
    for group in (*groups, *others, ("DefaultCluster", "broker-a\n")):
        brokers = [NamedBroker(groups[0]), NamedBroker(group)]
        assert is_allowed(partial(broker.check_brokers, brokers)) == (group in groups), group


@pytest.mark.parametrize(
    "values",
    [
        *(("Bearer  secret",), ("Bearer secret ",), ("Bearer ",), ("Bearer",), ("Bearer\tsecret",)),
        *(("Bearer Secret",), (f"Bearer {digest('secret')}",)),
        *(("Basic secret",), ("secret",), ("",), ("Bearer secret", "Bearer secret")),
    ],
)
def test_a_token_in_another_form_is_refused_and_not_repeated(permits: Permits, values: tuple[str, ...]) -> None:
    with refuses(CommonReason.NOT_AUTHENTICATED) as refused:
        of_token(shown(*values), permits)
    assert "secret" not in refused.value.text


def test_permits_that_no_caller_can_show_safely_are_logged(permits: Permits) -> None:
    with capture_logs() as lines:
        for with_tls, client_ca in ((False, None), (True, None), (True, Path("ca"))):
            warn_of_permits(permits, with_tls=with_tls, client_ca=client_ca)
            warn_of_permits(Permits(), with_tls=with_tls, client_ca=client_ca)
    of_certificates = "permits_without_client_certificates"
    assert [line["event"] for line in lines] == ["tokens_without_tls", of_certificates, of_certificates]


def may_register(pattern: str, address: str | None) -> bool:
    broker = Principal("broker", register=(BrokerPattern.parse(pattern),))
    return is_allowed(partial(broker.check_brokers, [NamedBroker(("fleet", "broker-a"), address)]))


@pytest.mark.parametrize(
    ("hosts", "permitted", "refused"),
    [
        ("10.0.0.0/24", ["10.0.0.0:1", "10.0.0.255:65535"], ["10.0.1.0:1", "[::ffff:10.0.0.1]:1", "[a00::1]:1", "b:1"]),
        ("10.0.0.1", ["10.0.0.1:10911", "10.0.0.1:1"], ["10.0.0.2:10911", "10.0.0.01:1", "10.0.0.1.example:1"]),
        ("10.0.0.0/8", ["10.0.0.1:1"], ["", "10.0.0.1", "10.0.0.1:0", ":1", "[10.0.0.1]:1", "10.0.0.1:1\n", "1" * 300]),
        ("0.0.0.0/0", ["127.0.0.1:1"], ["localhost:1", "127.1:1", "[::1]:1"]),
        ("fd00::/64", ["[fd00::1]:1", "[fd00:0::1]:1"], ["[fd00:0:0:1::1]:1", "10.0.0.1:1"]),
        ("fd00::1", ["[fd00::1]:1", "[fd00:0::1]:1"], ["[fd00::2]:1"]),
        ("broker-a.example", ["broker-a.example:1"], ["broker-b.example:1", "broker-a.example.evil:1", "10.0.0.1:1"]),
    ],
)
def test_a_pattern_permits_only_the_addresses_that_it_names(
    hosts: str, permitted: list[str], refused: list[str]
) -> None:
    pattern = f"fleet/broker-*@{hosts}"
    assert [address for address in [*permitted, *refused] if may_register(pattern, address)] == permitted
    assert all(may_register("fleet/*", address) for address in refused)
    assert may_register(pattern, None), "a call that names no address"
    assert not may_register(f"other/*@{hosts}", permitted[0])


def test_the_refusal_of_an_address_names_it_with_its_group_up_to_a_length() -> None:
    broker = Principal("broker", register=(BrokerPattern.parse("fleet/*@10.0.0.1"),))
    refusal = r"^broker may not register fleet/broker-a at 10\.0\.0\.2:10911$"
    with refuses(CommonReason.NOT_PERMITTED, match=refusal) as raised:
        broker.check_brokers([NamedBroker(("fleet", "broker-a"), "10.0.0.2:10911")])
    assert raised.value.metadata == {
        "principal": "broker",
        "permission": "register",
        "names": "fleet/broker-a",
        "address": "10.0.0.2:10911",
    }
    with refuses(CommonReason.NOT_PERMITTED) as raised:
        broker.check_brokers([NamedBroker(("c" * 10_000, "b" * 10_000), "a" * 10_000)])
    assert len(raised.value.text) < 800


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        *((text, "is not CLUSTER/BROKER") for text in ("broker-a", "a/b/c", "/", "a/", "a/b/c@d", "a/b\n")),
        ("fleet/*@10.0.0.1/24", "is not a network such as 10.0.0.0/24 or fd00::/64: 10.0.0.1/24 has host bits set"),
        ("fleet/*@broker/a", "is not a network"),
        ("fleet/*@", "is not a network, an IP address or a host name"),
        ("fleet/*@*.example", r"\* stands for nothing after @"),
        ("fleet/*@10.0.0.1:10911", "is not a network, an IP address or a host name"),
        ("fleet/*@a@b", "is not a network, an IP address or a host name"),
    ],
)
def test_a_wrong_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        BrokerPattern.parse(pattern)


def row(**values: object) -> dict[str, object]:
    return {"certificates": ["x"], **values}


def file_of(**values: object) -> str:
    """A permits file with one principal."""
    return json.dumps({"principals": {"a": row(**values)}})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty, so nobody could call"),
        (b"{", "Expecting property name"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "valid dictionary"),
        pytest.param(b" " * (MAX_PERMITS_FILE_BYTES + 1), "is larger than", id="bytes"),
        pytest.param(
            json.dumps({"principals": {key: {} for key in range(MAX_PRINCIPALS + 1)}}), "at most 10000", id="principals"
        ),
        (json.dumps({"principals": {"a": row(), "b": row()}}), "'x' is a's already"),
        (json.dumps({"principals": {name: {"token_sha256": [digest("t")]} for name in "ab"}}), "is a's already"),
        (file_of(token_sha256=[digest("t"), digest("").upper()]), "a.token_sha256.1: is the SHA-256 of an empty token"),
        (file_of(token_sha256=["secret"]), "a.token_sha256.0: is not a SHA-256 in hexadecimal"),
        (json.dumps({"principals": {"a": {"look_up": True}}}), "a: has neither certificates nor token_sha256"),
        (json.dumps({"principals": {"a b": row()}}), "a name has 1 to 127 of"),
        (file_of(look_up=1), "principals.a.look_up: Input should be a valid boolean"),
        (file_of(lookup=True), "a.lookup: is unknown; did you mean look_up?"),
        (file_of(agents={"reed": []}), "agents.reed: is unknown; did you mean read?"),
        (json.dumps({"principals": {"a": row()}, "x": 1}), "x: is unknown; known are principals"),
        (file_of(**{"x" * 200: []}), f"a.{'x' * 127}: is unknown; known are"),
        (file_of(register="a/b"), "principals.a.register: Input should be a valid list"),
        (file_of(register=["a/b", "a/b@10.0.0.1/8"]), "principals.a.register.1: '10.0.0.1/8' is not a network"),
        (file_of(agents={"read": ["a/b@10.0.0.1"]}), "read.0: .* is not CLUSTER/BROKER"),
        (file_of(certificates=[""]), "at least 1 character"),
        *(
            (file_of(certificates=["x", one]), rf"a\.certificates\.1: {re.escape(repr(one))} has \*, .* the exact URI")
            for one in ("*", "*.example", "spiffe://prod/*")
        ),
    ],
)
def test_a_file_that_is_not_right_is_refused_as_a_whole(tmp_path: Path, content: bytes | str, problem: str) -> None:
    path = tmp_path / "permits.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PermitsError, match=problem) as raised:
        read_permits(path)
    assert str(raised.value).startswith(f"permits file {path}: ")
