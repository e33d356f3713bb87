from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_agent.namesrv_list import (
    MAX_LIST_BYTES,
    MAX_NAME_SERVERS,
    check_namesrv,
    decode_list,
    parse_list,
    read_list_file,
    split_address_server,
)
from tests.support.fakes.name_system import endpoints

MANY = [f"10.0.0.{i}:9876" for i in range(MAX_NAME_SERVERS + 1)]


def test_a_setting_is_a_list_in_any_notation_or_one_file() -> None:
    assert check_namesrv(["a:1;b:2", "c:3, d:4"]) == ["a:1", "b:2", "c:3", "d:4"]
    assert check_namesrv([" file:/etc/list "]) == ["file:/etc/list"]
    assert check_namesrv(["http://h/ns", "a:1"]) == ["a:1", "http://h/ns"]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["file:/a", "b:1"], "file: stands alone: the file holds the whole list"),
        (["b:1", "file:/a"], "file: stands alone: the file holds the whole list"),
        (["file:"], "'file:' names no file: write file:/path/of/the/list"),
        (["a:1;;b:2"], "the endpoint list 'a:1;;b:2' has an empty element"),
        ([""], "the endpoint list '' has an empty element"),
        ([], "the endpoint list is empty"),
        (MANY, f"the endpoint list has {MAX_NAME_SERVERS + 1} elements, at most {MAX_NAME_SERVERS}"),
    ],
)
def test_another_setting_is_refused_and_the_reason_said(texts: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_namesrv(texts)


def test_as_many_name_servers_as_allowed_are_taken() -> None:
    assert len(check_namesrv(MANY[:-1])) == MAX_NAME_SERVERS


@pytest.mark.parametrize(
    "text",
    ["a:1;b:2", "a:1;b:2;", "a:1\nb:2\n", "# ours\r\na:1, # first\r\n\r\n  b:2 ;\r\n", " a:1 b:2 "],
)
def test_a_list_in_a_file_or_an_answer_may_have_lines_comments_and_a_separator_at_the_end(text: str) -> None:
    assert parse_list(text) == endpoints("a:1 b:2")


@pytest.mark.parametrize("text", ["", "\n# nothing\n", ";", "a:1;;b:2", "<html>", "a", "a:1\na:1", "\n".join(MANY)])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint list|address"):
        parse_list(text)


def test_a_list_is_ascii_and_has_a_longest_length() -> None:
    assert len(decode_list(b"x" * MAX_LIST_BYTES)) == MAX_LIST_BYTES
    with pytest.raises(ValueError, match="the list has more than 65536 bytes"):
        decode_list(b"x" * (MAX_LIST_BYTES + 1))
    with pytest.raises(ValueError, match="the list has byte 0xff, which is not ASCII"):
        decode_list(b"a:1\xff")


def test_an_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "list"
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: No such file or directory$"):
        read_list_file(file)
    file.write_text("a:x")
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: address 'a:x' has port 'x'"):
        read_list_file(file)
    file.write_text("a:1\n")
    assert read_list_file(file) == endpoints("a:1")


@pytest.mark.parametrize("url", ["http://h", "https://h:8080/rocketmq/nsaddr?unit=a", "http://[::1]:80/x"])
def test_the_url_of_an_address_server_is_http_or_https(url: str) -> None:
    assert check_namesrv([url]) == [url]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://h/x", "is not of the form http://"),
        ("h:80/x", "is not of the form http://"),
        ("http://", "is not of the form http://"),
        ("http://h:0/", "is not of the form http://"),
        ("http://h:99999/", "Port out of range"),
        ("http://h:x/", "Port could not be cast"),
        ("http://[::1/", "Invalid IPv6 URL"),
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
