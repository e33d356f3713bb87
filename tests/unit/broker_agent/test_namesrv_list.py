"""The list of name servers: its notations, the names behind it, and its changes."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent.namesrv_list import (
    FIRST_LOOKUP_SECONDS,
    MAX_LIST_BYTES,
    MAX_NAME_SERVERS,
    RESOLVE_JITTER,
    RESOLVE_PERIOD_SECONDS,
    NamesrvList,
    addresses_of,
    check_namesrv,
    list_file,
    parse_list,
)
from namesrv_common.endpoints import Endpoint
from tests.support.patience import TIMEOUT
from tests.support.virtual_clock import VirtualClock, agent_timing

MANY = [f"10.0.0.{i}:9876" for i in range(MAX_NAME_SERVERS + 1)]


def endpoints(text: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint.parse(part) for part in text.split())


def test_a_setting_is_a_list_in_any_notation_or_one_file() -> None:
    assert check_namesrv(["a:1;b:2", "c:3, d:4"]) == ["a:1", "b:2", "c:3", "d:4"]
    assert check_namesrv([" file:/etc/list "]) == ["file:/etc/list"]
    for url in ("http://h", "https://h:8080/rocketmq/nsaddr?unit=a", "http://[::1]:80/x"):
        assert check_namesrv([url, "a:1"]) == ["a:1", url]
    assert check_namesrv(MANY[:-1]) == MANY[:-1]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["file:/a", "b:1"], "file: stands alone: the file holds the whole list"),
        (["http://a/", "http://b/"], "two address servers cannot both say which name servers there are"),
        (["file:"], "'file:' names no file: write file:/path/of/the/list"),
        (["a:1;;b:2"], "the endpoint list 'a:1;;b:2' has an empty element"),
        (MANY, f"the endpoint list has {MAX_NAME_SERVERS + 1} elements, at most {MAX_NAME_SERVERS}"),
        (["ftp://h/x"], "is not of the form http://"),
        (["http://"], "is not of the form http://"),
        (["http://h:0/"], "is not of the form http://"),
        (["http://h:99999/"], "Port out of range"),
        (["http://u:p@h/"], "has a user or a fragment"),
        (["http://h/#f"], "has a user or a fragment"),
        (["http://h/a b"], "has a blank or a character beyond ASCII"),
        (["http://h/\u00e4"], "has a blank or a character beyond ASCII"),
    ],
)
def test_another_setting_is_refused_and_a_password_is_not_repeated(texts: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as refused:
        check_namesrv(texts)
    assert "u:p" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["a:1;b:2", "a:1;b:2;", "a:1\nb:2\n", "# ours\r\na:1, # first\r\n\r\n  b:2 ;\r\n", " a:1 b:2 "]
)
def test_a_list_may_have_lines_comments_and_a_separator_at_the_end(text: str) -> None:
    assert parse_list(text.encode()) == endpoints("a:1 b:2")


@pytest.mark.parametrize("text", ["", "\n# nothing\n", ";", "a:1;;b:2", "<html>", "a", "a:1\na:1", "\n".join(MANY)])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint list|address"):
        parse_list(text.encode())


def test_a_list_is_ascii_and_has_a_longest_length() -> None:
    assert parse_list(b"a:1".ljust(MAX_LIST_BYTES)) == endpoints("a:1")
    with pytest.raises(ValueError, match="the list has more than 65536 bytes"):
        parse_list(b"a:1".ljust(MAX_LIST_BYTES + 1))
    with pytest.raises(ValueError, match="the list has byte 0xff, which is not ASCII"):
        parse_list(b"a:1\xff")


@pytest.mark.parametrize("broken", [b"b:1;;c:2\n", b"x" * 100_000, None])
def test_a_mounted_file_is_read_again_and_named_while_it_is_broken(tmp_path: Path, broken: bytes | None) -> None:
    def mount(version: str, content: bytes | None) -> None:
        """Turns the link to the present folder, as a ConfigMap does."""
        (tmp_path / version).mkdir()
        if content is not None:
            (tmp_path / version / "list").write_bytes(content)
        (tmp_path / "..new").symlink_to(version)
        (tmp_path / "..new").rename(tmp_path / "..data")

    mount("..1", b"10.0.0.1:1\n")
    file = tmp_path / "list"
    file.symlink_to("..data/list")
    source = list_file(file)
    assert source.read() == endpoints("10.0.0.1:1")
    mount("..2", broken)
    assert source.read() == endpoints("10.0.0.1:1"), "a changed file has to look the same twice"
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: "):
            source.read()
    mount("..3", b"10.0.0.2:1\n")
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: "):
        source.read()
    assert source.read() == endpoints("10.0.0.2:1")


def test_scenario_66_the_addresses_of_localhost_include_127_0_0_1() -> None:
    assert Endpoint("127.0.0.1", 6789) in addresses_of(Endpoint("localhost", 6789))


def test_a_name_with_addresses_of_ipv6_alone_has_those(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::2", 1, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert addresses_of(Endpoint("ns", 1)) == endpoints("[fd00::2]:1")


def test_a_label_that_the_dns_cannot_carry_is_an_os_error() -> None:
    with pytest.raises(OSError, match="is no name of the DNS"):
        addresses_of(Endpoint("a" * 64, 1))


class NameSystem:
    """A DNS with the answers of the test, a list on virtual time that asks it, and what its listener was told."""

    def __init__(self) -> None:
        self.addresses = {"ns": ["10.0.0.1", "10.0.0.2"], "other": ["10.0.1.1"]}
        """A host that is not in it is not known."""
        self.asked: list[str] = []
        self.time = VirtualClock()
        self.told: list[tuple[Endpoint, ...]] = []
        self.list = NamesrvList(endpoints("ns:1"), None, agent_timing(self.time), self.resolve)
        self.list.start()
        self.list.on_change = lambda: self.told.append(self.list.endpoints)

    def resolve(self, name: Endpoint) -> tuple[Endpoint, ...]:
        self.asked.append(name.host)
        if name.host not in self.addresses:
            raise OSError(f"{name.host} is not known")
        return tuple(Endpoint(host, name.port) for host in self.addresses[name.host])

    def list_is(self, text: str) -> None:
        self.list.take_names(endpoints(text))


@pytest.fixture
def system() -> Iterator[NameSystem]:
    started = NameSystem()
    yield started
    started.list.stop()


LONGEST_PERIOD = RESOLVE_PERIOD_SECONDS * (1 + RESOLVE_JITTER)


def test_an_address_goes_once_two_lookups_in_a_row_lacked_it(system: NameSystem) -> None:
    for turn in range(20):
        asked = len(system.asked)
        system.addresses["ns"] = [f"10.0.0.{1 + turn % 2}"]
        while len(system.asked) == asked:
            system.time.run(1.0)
    assert system.told == []
    system.time.run(LONGEST_PERIOD)
    assert system.told == [endpoints("10.0.0.2:1")]


@pytest.mark.parametrize("nothing", [{}, {"new": []}], ids=["failed", "empty"])
def test_lookups_without_an_address_keep_those_before_and_come_more_often(
    system: NameSystem, nothing: dict[str, list[str]]
) -> None:
    system.addresses |= nothing
    with capture_logs() as logs:
        system.list_is("new:1")
        assert system.list.endpoints == endpoints("10.0.0.1:1 10.0.0.2:1")
        system.time.run(10.0)
        assert 4 <= system.asked.count("new") <= 6
        system.addresses["new"] = ["10.0.2.2"]
        system.time.run(2 * RESOLVE_PERIOD_SECONDS)
        del system.addresses["new"]
        system.addresses |= nothing
        system.time.run(20 * LONGEST_PERIOD)
        system.addresses["new"] = ["10.0.2.2"]
        system.time.run(20 * LONGEST_PERIOD)
    assert system.told == [endpoints("10.0.2.2:1")]
    said = [(entry["event"], entry.get("kept")) for entry in logs if entry["event"] != "namesrv_list"]
    assert said == [
        ("namesrv_name_not_resolved", []),
        ("namesrv_name_resolved_again", None),
        ("namesrv_name_resolved", None),
        ("namesrv_name_not_resolved", ["10.0.2.2:1"]),
        ("namesrv_name_resolved_again", None),
    ]


def test_names_and_addresses_mix_and_each_counts_once(system: NameSystem) -> None:
    system.list_is("10.0.9.9:1 ns:1 10.0.0.2:1 other:2 [::1]:3")
    expected = endpoints("10.0.9.9:1 10.0.0.1:1 10.0.0.2:1 10.0.1.1:2 [::1]:3")
    assert (system.list.endpoints, system.told) == (expected, [expected])
    assert system.asked == ["ns", "other"], "a name that stays is not looked up anew"
    system.list_is("other:2")
    system.time.run(100 * RESOLVE_PERIOD_SECONDS)
    assert system.asked.count("ns") == 1, "a name that left the list is not looked up"
    assert 95 <= system.asked.count("other") <= 107
    assert system.told == [expected, endpoints("10.0.1.1:2")]
    system.list.stop()
    system.list_is("10.0.9.9:1")
    assert system.told[2:] == [], "nobody is told anything after the end"


def test_a_lookup_that_hangs_holds_up_only_the_start_for_5_seconds(system: NameSystem) -> None:
    time, waited, answers = VirtualClock(), list[float](), threading.Event()

    def resolve(name: Endpoint) -> tuple[Endpoint, ...]:
        assert answers.wait(TIMEOUT)
        return system.resolve(name)

    def wait(event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return time.wait(event, seconds)
        waited.append(seconds)
        return event.wait(0)

    timing = replace(agent_timing(time), wait=wait)
    namesrv = NamesrvList(endpoints("other:1 10.0.9.9:1"), None, timing, resolve)
    changed = threading.Event()
    namesrv.start()
    namesrv.on_change = changed.set
    assert max(waited) == FIRST_LOOKUP_SECONDS
    assert namesrv.endpoints == endpoints("10.0.9.9:1")
    answers.set()
    assert changed.wait(TIMEOUT)
    assert namesrv.endpoints == endpoints("10.0.1.1:1 10.0.9.9:1")
    namesrv.stop()


def test_too_many_addresses_are_cut_and_logged_once(system: NameSystem) -> None:
    for host in range(3):
        system.addresses["ns"] = [f"10.0.{host}.{i}" for i in range(MAX_NAME_SERVERS + 1)]
        with capture_logs() as logs:
            system.time.run(3 * RESOLVE_PERIOD_SECONDS)
        assert len(system.list.endpoints) == MAX_NAME_SERVERS
        assert [entry["event"] for entry in logs].count("namesrv_list_cut") == (1 if host == 0 else 0)
