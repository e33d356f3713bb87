"""The server of each engine, and the error where the native engine cannot be used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from namesrv.engines.factory import EngineMissing, build_server
from namesrv.limits import MAX_CONNECTIONS
from namesrv.settings import NamesrvSettings
from namesrv_common.process.program import descriptors_of_listener
from namesrv_common.version import __version__
from tests.support.engines import LEFT_OUT


def test_native_has_no_more_connections_than_there_are_descriptors() -> None:
    pytest.importorskip("namesrv_engine", reason=LEFT_OUT)
    from namesrv.engines.native import limits_of  # noqa: PLC0415 - as above

    assert limits_of(NamesrvSettings.load(None, {}))["max_connections"] == min(
        MAX_CONNECTIONS, descriptors_of_listener(1)
    )


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, "is not installed"),
        (SimpleNamespace(), "cannot be loaded"),
        (SimpleNamespace(__version__="0.0.1"), "is of version 0.0.1"),
    ],
)
def test_native_that_cannot_be_used_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, module: object, problem: str
) -> None:
    monkeypatch.setitem(sys.modules, "namesrv_engine", module)
    with pytest.raises(EngineMissing) as refused:
        build_server(NamesrvSettings.load(None, {}))
    for part in (problem, f"pip install ./namesrv_engine-{__version__}-*.whl", "--engine development"):
        assert part in str(refused.value)
