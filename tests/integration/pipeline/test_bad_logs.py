"""Logs that are not as they were written: each command says so in one line, before Spark, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from route_pipeline.commands import app
from route_pipeline.log.compaction import compact
from route_pipeline.log.protocol import commits
from route_pipeline.log.protocol.route_log import MARKER, RouteLog, commit_path
from route_pipeline.log.protocol.writer import LogWriter
from route_pipeline.stores.store import Store
from route_pipeline.stores.urls import open_store
from tests.support.routes.log_rows import append

COMMANDS = {
    "ingest": ["ingest", "--namesrv", "127.0.0.1:1", "--out", "PLACE"],
    "report": ["report", "PLACE"],
    "as-of": ["as-of", "PLACE", "2026-01-02", "TopicTest"],
    "who-changed": ["who-changed", "PLACE", "TopicTest"],
    "divergence": ["divergence", "PLACE"],
    "compact": ["compact", "PLACE"],
    "compact and drop": ["compact", "PLACE", "--keep-days", "1"],
    "export": ["export", "PLACE", "PLACE-copy"],
}


def run(command: str, place: str) -> Result:
    return CliRunner().invoke(app, [word.replace("PLACE", place) for word in COMMANDS[command]])


def content_of(place: str) -> dict[str, bytes]:
    """Each file of a place, and of its copy."""
    return {
        f"{where}/{file.path}": open_store(where).read(file.path)
        for where in (place, f"{place}-copy")
        for file in open_store(where).files()
    }


def rewrite(store: Store, path: str, change: Callable[[bytes], bytes]) -> None:
    content = store.read(path)
    store.delete(path)
    assert store.create(path, change(content))


def newer(content: bytes) -> bytes:
    header, _, rest = content.partition(b"\n")
    return json.dumps(json.loads(header) | {"version": commits.VERSION + 1}).encode() + b"\n" + rest


def another_log(store: Store) -> None:
    """Its last commit comes to lie where a commit of this one should."""
    other = RouteLog.create(f"{store.url}-other")
    for revision in (1, 2, 3):
        append(LogWriter(other), revision)
    assert store.create(commit_path(4), _renumbered(other))


def _renumbered(log: RouteLog) -> bytes:
    body: dict[str, Any] = commits.decode("", 3, log.store.read(commit_path(3)))
    return commits.encode(4, body)


HARMS: dict[str, tuple[Callable[[Store], object], str]] = {
    "a commit that was cut": (
        lambda store: rewrite(store, commit_path(2), lambda content: content[:-10]),
        "00002.json was cut or changed after it was written",
    ),
    "a commit that was edited": (
        lambda store: rewrite(store, commit_path(2), lambda content: content.replace(b'"rows":1', b'"rows":7')),
        "00002.json was cut or changed after it was written: its checksum is another one",
    ),
    "a commit that is missing": (lambda store: store.delete(commit_path(2)), "00002.json is missing"),
    "a commit of another log": (another_log, "00004.json is of another log: two are in one place"),
    "a commit of a newer version": (
        lambda store: rewrite(store, commit_path(2), newer),
        f"version {commits.VERSION + 1} of the format; this program knows {commits.VERSION}",
    ),
    "a log of a newer version": (
        lambda store: rewrite(
            store, MARKER, lambda content: json.dumps(json.loads(content) | {"layout_version": 9}).encode()
        ),
        "has layout version 9; this program knows",
    ),
    "a marker that was cut": (
        lambda store: rewrite(store, MARKER, lambda content: content[:9]),
        f"{MARKER} is damaged",
    ),
    "another program's folder": (
        lambda store: store.delete(MARKER),
        f"holds something else: it has no {MARKER}",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_log_that_is_not_what_was_written_is_named_in_one_line_and_left_alone(place: str, harm: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for revision in (1, 2, 3):
        append(writer, revision)
    do_it, problem = HARMS[harm]
    do_it(log.store)
    before = content_of(place)
    for command in COMMANDS:
        result = run(command, place)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), (command, result.stderr)
        assert problem in result.stderr, command
    assert content_of(place) == before


READING = ["report", "as-of", "who-changed", "divergence", "compact", "compact and drop", "export"]
"""Commands that read data files."""
FILE_HARMS: dict[str, tuple[Callable[[Store, str], object], str]] = {
    "missing": (lambda store, path: store.delete(path), "{} is missing, and the log has rows in it"),
    "cut": (
        lambda store, path: rewrite(store, path, lambda content: content[:-20]),
        "{} was cut or changed after it was written: it has ",
    ),
    "empty": (
        lambda store, path: rewrite(store, path, lambda _content: b""),
        "{} was cut or changed after it was written: it has 0 bytes of ",
    ),
}


@pytest.mark.parametrize("harm", FILE_HARMS)
def test_a_data_file_that_is_missing_or_cut_is_named_in_one_line_before_spark_and_nothing_changes(
    place: str, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_pipeline.commands.spark_session", lambda *_: pytest.fail("Spark was started"))
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for revision in (1, 2, 3):
        append(writer, revision)
    path = list(log.state().files)[1]
    do_it, problem = FILE_HARMS[harm]
    do_it(log.store, path)
    before = content_of(place)
    for command in READING:
        result = run(command, place)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), (command, result.stderr)
        assert problem.format(log.store.uri(path)) in result.stderr, command
    assert content_of(place) == before


@pytest.mark.parametrize("part", ["rows", "footer"])
def test_a_data_file_that_was_overwritten_is_named_in_one_line_once_it_is_read(place: str, part: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for revision in (1, 2, 3):
        append(writer, revision)
    path = list(log.state().files)[1]
    half = slice(8, 400) if part == "rows" else slice(-200, -8)
    rewrite(log.store, path, lambda content: content.replace(content[half], b"\xff" * len(content[half])))
    before = content_of(place)
    result = run("compact", place)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert f"{log.store.uri(path)} was cut or changed after it was written: it cannot be read" in result.stderr
    assert content_of(place) == before


def test_files_that_another_compaction_replaced_meanwhile_are_not_missing(place: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for revision in (1, 2, 3):
        append(writer, revision)
    seen = log.state()
    old = set(seen.files)
    compact(log, timedelta(0))
    assert old.isdisjoint(file.path for file in log.store.files())
    log.check_files(seen)
    assert old.isdisjoint(seen.files)


def test_a_log_inside_another_is_refused_and_neither_changes(place: str) -> None:
    log = RouteLog.create(place)
    append(LogWriter(log), 1)
    before = content_of(place)
    result = run("ingest", f"{place}/inner")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert "is inside the log" in result.stderr
    assert content_of(place) == before
