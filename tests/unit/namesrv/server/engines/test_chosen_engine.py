"""The choice of the engine, and the errors where none can be used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from groundwork.endpoints import Endpoint
from groundwork.version import __version__
from namesrv.engines.chosen_engine import ChosenEngine, EngineMissing, choose_engine, warn_of_exposure

LOOPBACK, EVERYWHERE = Endpoint("127.0.0.1", 9876), Endpoint("0.0.0.0", 9876)


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Has the native engine be installed in a version, or not at all."""
    module = None if version is None else SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "namesrv_engine", module)


def test_auto_takes_native_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, __version__)
    for listen in (LOOPBACK, EVERYWHERE):
        assert choose_engine("auto", listen).name == choose_engine("native", listen).name == "native"
        assert choose_engine("grpcio", listen) == ("grpcio", "as set")


def test_auto_takes_grpcio_on_loopback_where_native_is_missing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    chosen = choose_engine("auto", LOOPBACK)
    assert chosen.name == "grpcio"
    assert "namesrv-engine is not installed" in chosen.why


def test_auto_takes_grpcio_on_loopback_where_native_is_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.0.1")
    chosen = choose_engine("auto", LOOPBACK)
    assert chosen == ("grpcio", f"namesrv-engine is of version 0.0.1, and namesrv of {__version__}")


@pytest.mark.parametrize(("version", "problem"), [(None, "is not installed"), ("0.0.1", "is of version 0.0.1")])
def test_auto_beyond_loopback_is_refused_without_native(
    monkeypatch: pytest.MonkeyPatch, version: str | None, problem: str
) -> None:
    installed(monkeypatch, version)
    with pytest.raises(EngineMissing) as refused:
        choose_engine("auto", EVERYWHERE)
    for part in (problem, "listen 0.0.0.0:9876", f"pip install ./namesrv_engine-{__version__}-", "--engine grpcio"):
        assert part in str(refused.value)


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_native_that_cannot_be_used_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    installed(monkeypatch, version)
    with pytest.raises(EngineMissing, match=rf"pip install \./namesrv_engine-{__version__}-\*\.whl "):
        choose_engine("native", LOOPBACK)


@pytest.mark.parametrize(
    ("engine", "host", "warned"),
    [("grpcio", "0.0.0.0", True), ("grpcio", "127.0.0.1", False), ("native", "0.0.0.0", False)],
)
def test_grpcio_beyond_loopback_is_warned_of(engine: str, host: str, warned: bool) -> None:
    with capture_logs() as lines:
        warn_of_exposure(ChosenEngine(engine, "as set"), Endpoint(host, 9876))
    assert [line["event"] for line in lines] == ["engine_for_trusted_networks"] * warned
    assert all("hostile client" in line["problem"] for line in lines)
