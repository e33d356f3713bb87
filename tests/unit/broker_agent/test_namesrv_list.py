"""The list of name servers: its notations, the names behind it, and its changes."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    namesrv_list_of,
    parse_list,
    split_address_server,
)
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS
from tests.support.patience import TIMEOUT
from tests.support.virtual_clock import VirtualClock, agent_timing

MANY = [f"10.0.0.{i}:9876" for i in range(MAX_NAME_SERVERS + 1)]


class NameSystem:
    """A DNS with the answers of the test."""

    def __init__(self, **addresses: str) -> None:
        self.addresses = {host: hosts.split() for host, hosts in addresses.items()}
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self._answer = threading.Event()

    def set(self, host: str, addresses: str) -> None:
        """The addresses behind a host, separated by blanks. A host that was never set is not known."""
        self.addresses[host] = addresses.split()

    def answer_all(self) -> None:
        self._answer.set()

    def resolve(self, name: Endpoint) -> tuple[Endpoint, ...]:
        self.asked.append(name.host)
        if name.host in self.hanging:
            assert self._answer.wait(TIMEOUT)
        if name.host not in self.addresses:
            raise OSError(f"{name.host} is not known")
        return tuple(Endpoint(host, name.port) for host in sorted(self.addresses[name.host]))


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
    ],
)
def test_another_setting_is_refused_and_the_reason_said(texts: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_namesrv(texts)


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


def test_an_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("a:x")
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: address 'a:x' has port 'x'"):
        list_file(file)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://h/x", "is not of the form http://"),
        ("http://", "is not of the form http://"),
        ("http://h:0/", "is not of the form http://"),
        ("http://h:99999/", "Port out of range"),
        ("http://u:p@h/", "has a user or a fragment"),
        ("http://h/#f", "has a user or a fragment"),
        ("http://h/a b", "has a blank or a character beyond ASCII"),
        ("http://h/\u00e4", "has a blank or a character beyond ASCII"),
    ],
)
def test_another_url_is_refused_and_a_password_is_not_repeated(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        split_address_server(url)
    assert "u:p" not in str(refused.value)


@contextmanager
def watched_list(path: Path) -> Iterator[tuple[list[tuple[Endpoint, ...]], Callable[[], None]]]:
    """A list file that is watched on virtual time: the lists that were told, and a look at the file."""
    time, told = VirtualClock(), list[tuple[Endpoint, ...]]()
    namesrv = namesrv_list_of([f"file:{path}"], timing=agent_timing(time))
    namesrv.start()
    namesrv.on_change = lambda: told.append(namesrv.endpoints)
    time.settle(1)
    yield told, lambda: time.run(2 * CHECK_SECONDS)  # a changed file has to look the same twice
    namesrv.stop()


def test_a_link_that_is_turned_as_a_config_map_does_is_followed(tmp_path: Path) -> None:
    for version, content in (("..1", "10.0.0.1:1"), ("..2", "10.0.0.2:1")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "list").write_text(content)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "list").symlink_to("..data/list")
    with watched_list(tmp_path / "list") as (told, look):
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        look()
        assert told == [endpoints("10.0.0.2:1")]


@pytest.mark.parametrize("broken", [b"b:1;;c:2\n", b"x" * 100_000, None])
def test_a_broken_or_missing_file_keeps_the_list_and_is_logged_once(tmp_path: Path, broken: bytes | None) -> None:
    file = tmp_path / "list"
    file.write_text("10.0.0.1:1\n")
    with capture_logs() as logs, watched_list(file) as (told, look):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        look()
        look()
        file.write_text("10.0.0.1:1\n")
        look()
    said = [(entry["event"], entry["source"], entry.get("kept")) for entry in logs if entry["event"] != "namesrv_list"]
    assert said == [
        ("namesrv_list_bad", str(file), ["10.0.0.1:1"]),
        ("namesrv_list_good_again", str(file), None),
    ]
    assert told == []


def test_scenario_66_the_addresses_of_localhost_include_127_0_0_1() -> None:
    assert Endpoint("127.0.0.1", 6789) in addresses_of(Endpoint("localhost", 6789))


def test_a_name_with_addresses_of_ipv6_alone_has_those(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::2", 1, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert addresses_of(Endpoint("ns", 1)) == endpoints("[fd00::2]:1")


def test_a_label_that_the_dns_cannot_carry_is_an_os_error() -> None:
    with pytest.raises(OSError, match="is no name of the DNS"):
        addresses_of(Endpoint("a" * 64, 1))


class Following:
    """A list on virtual time that has what the test says, and what its listener was told."""

    def __init__(self, system: NameSystem) -> None:
        self.time = VirtualClock()
        self.told: list[tuple[Endpoint, ...]] = []
        self.list = NamesrvList(endpoints("ns:1"), None, agent_timing(self.time), system.resolve)
        self.list.start()
        self.list.on_change = lambda: self.told.append(self.list.endpoints)

    def say(self, text: str) -> None:
        self.list.take_names(endpoints(text))


@pytest.fixture
def system() -> NameSystem:
    return NameSystem(ns="10.0.0.1 10.0.0.2", other="10.0.1.1")


@pytest.fixture
def following(system: NameSystem) -> Iterator[Following]:
    started = Following(system)
    yield started
    system.answer_all()
    started.list.stop()


LONGEST_PERIOD = RESOLVE_PERIOD_SECONDS * (1 + RESOLVE_JITTER)


def test_a_name_is_looked_up_again_each_period_with_jitter(following: Following, system: NameSystem) -> None:
    following.time.run(100 * RESOLVE_PERIOD_SECONDS)
    assert 95 <= len(system.asked) <= 106
    assert following.told == []


def test_an_address_goes_once_two_lookups_in_a_row_lacked_it(following: Following, system: NameSystem) -> None:
    for turn in range(20):
        asked = len(system.asked)
        system.set("ns", f"10.0.0.{1 + turn % 2}")
        while len(system.asked) == asked:
            following.time.run(1.0)
    assert following.told == []
    following.time.run(LONGEST_PERIOD)
    assert following.told == [endpoints("10.0.0.2:1")]


@pytest.mark.parametrize("is_known", [False, True])
def test_failed_and_empty_lookups_keep_the_addresses_and_are_logged_once(
    following: Following, system: NameSystem, *, is_known: bool
) -> None:
    with capture_logs() as logs:
        system.set("ns", "")
        if not is_known:
            del system.addresses["ns"]
        following.time.run(20 * LONGEST_PERIOD)
        system.set("ns", "10.0.0.1 10.0.0.2")
        following.time.run(20 * LONGEST_PERIOD)
    assert [entry["event"] for entry in logs] == ["namesrv_name_not_resolved", "namesrv_name_resolved_again"]
    assert logs[0]["kept"] == ["10.0.0.1:1", "10.0.0.2:1"]
    assert following.told == []


def test_names_and_addresses_mix_and_each_counts_once(following: Following, system: NameSystem) -> None:
    following.say("10.0.9.9:1 ns:1 10.0.0.2:1 other:2 [::1]:3")
    expected = endpoints("10.0.9.9:1 10.0.0.1:1 10.0.0.2:1 10.0.1.1:2 [::1]:3")
    assert (following.list.endpoints, following.told) == (expected, [expected])
    assert system.asked == ["ns", "other"], "a name that stays is not looked up anew"


def test_names_that_left_the_list_are_not_looked_up(following: Following, system: NameSystem) -> None:
    following.say("other:1")
    asked = system.asked.count("ns")
    following.time.run(10 * RESOLVE_PERIOD_SECONDS)
    assert system.asked.count("ns") == asked
    assert system.asked.count("other") > 5


def test_unknown_names_replace_nothing_and_are_asked_for_more_often(following: Following, system: NameSystem) -> None:
    following.say("unknown:1")
    assert following.list.endpoints == endpoints("10.0.0.1:1 10.0.0.2:1")
    assert following.told == []
    following.time.run(10.0)
    assert 4 <= system.asked.count("unknown") <= 6
    system.set("unknown", "10.0.2.2")
    following.time.run(2 * RESOLVE_PERIOD_SECONDS)
    assert following.told == [endpoints("10.0.2.2:1")]


def test_a_lookup_that_hangs_holds_up_only_the_start_for_5_seconds(system: NameSystem) -> None:
    system.hanging.add("other")
    time, waited = VirtualClock(), list[float]()

    def wait(event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return time.wait(event, seconds)
        waited.append(seconds)
        return event.wait(0)

    timing = replace(agent_timing(time), wait=wait)
    namesrv = NamesrvList(endpoints("other:1 10.0.9.9:1"), None, timing, system.resolve)
    changed = threading.Event()
    namesrv.start()
    namesrv.on_change = changed.set
    assert max(waited) == FIRST_LOOKUP_SECONDS
    assert namesrv.endpoints == endpoints("10.0.9.9:1")
    system.answer_all()
    assert changed.wait(TIMEOUT)
    assert namesrv.endpoints == endpoints("10.0.1.1:1 10.0.9.9:1")
    namesrv.stop()


def test_too_many_addresses_are_cut_and_logged_once(following: Following, system: NameSystem) -> None:
    for host in range(3):
        system.set("ns", " ".join(f"10.0.{host}.{i}" for i in range(MAX_NAME_SERVERS + 1)))
        with capture_logs() as logs:
            following.time.run(3 * RESOLVE_PERIOD_SECONDS)
        assert len(following.list.endpoints) == MAX_NAME_SERVERS
        assert [entry["event"] for entry in logs].count("namesrv_list_cut") == (1 if host == 0 else 0)


def test_after_stop_nobody_is_told_anything(following: Following) -> None:
    following.list.stop()
    following.say("other:1")
    assert following.told == []
