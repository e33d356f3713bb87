"""The server of each engine, and calls that the native engine knows by a number: each answer is computed anew."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from namesrv.limits import MAX_CONNECTIONS
from namesrv.server.listeners import CannotListen, build_server
from namesrv.settings import NamesrvSettings
from namesrv_common.process.program import descriptors_of_listener
from namesrv_common.version import __version__
from tests.support.engines import LEFT_OUT


def test_native_has_no_more_connections_than_there_are_descriptors() -> None:
    pytest.importorskip("namesrv_engine", reason=LEFT_OUT)
    from namesrv.engines.native import limits_of  # noqa: PLC0415 - its package may be missing

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
    with pytest.raises(CannotListen) as refused:
        build_server(NamesrvSettings.load(None, {}))
    for part in (problem, f"pip install ./namesrv_engine-{__version__}-*.whl", "--engine development"):
        assert part in str(refused.value)


# Calls that are known: each answer is computed anew, or the call is looked at as a whole.


class _Engine:
    """What the engine is told; calls whose text is long are too long to be known."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def know(self, call: Any, number: int) -> bool:
        if len(call.text) > 10:
            return False
        self.known[call.text] = number
        return True

    def forget_known(self) -> None:
        self.known.clear()


class _World:
    def __init__(self, most: int = 100) -> None:
        pytest.importorskip("namesrv_engine", reason=LEFT_OUT)
        from namesrv.engines.native import KnownCalls  # noqa: PLC0415 - as above

        self.engine = _Engine()
        engine: Any = self.engine
        self.calls = KnownCalls(engine, most)

    def learn(self, text: str, again: Any) -> None:
        call: Any = SimpleNamespace(text=text, known=self.engine.known.get(text))
        self.calls.learn(call, again)

    def ask(self, *texts: str) -> list[bytes | None]:
        return self.calls.answers([self.engine.known[text] for text in texts])


def test_each_answer_is_computed_when_the_call_comes_and_without_one_it_is_looked_at() -> None:
    world, said = _World(), [b"one", b"two"]
    for text, again in {"a": lambda: said[0], "b": lambda: said[1], "n": lambda: None, "x": lambda: 1 // 0}.items():
        world.learn(text, again)
    assert world.ask("b", "a", "n", "x", "b") == [b"two", b"one", None, None, b"two"]
    said[1] = b"three"
    assert world.ask("a", "b") == [b"one", b"three"]


def test_what_is_forgotten_is_forgotten_for_those_too_that_are_on_their_way() -> None:
    world = _World()
    world.learn("a", lambda: b"one")
    number = world.engine.known["a"]
    world.calls.forget()
    world.learn("b", lambda: b"two")
    assert world.calls.answers([number]) == [None]
    assert list(world.engine.known) == ["b"]


def test_beyond_the_bound_all_are_learned_anew() -> None:
    world = _World(most=2)
    for text in "abc":
        world.learn(text, lambda: b"one")
    assert list(world.engine.known) == ["c"]
    assert world.ask("c") == [b"one"]


def test_a_call_that_is_learned_again_takes_the_place_of_what_it_was_known_by() -> None:
    world = _World(most=2)
    world.learn("a", lambda: b"one")
    for _ in range(5):
        world.learn("b", lambda: b"two")
    assert world.ask("a", "b") == [b"one", b"two"]


def test_what_the_engine_does_not_take_is_not_kept() -> None:
    world = _World(most=2)
    world.learn("much too long", lambda: b"one")
    world.learn("a", lambda: b"one")
    world.learn("b", lambda: b"two")
    assert world.ask("a", "b") == [b"one", b"two"]


def test_a_call_that_waits_is_told_so_once_and_ended_if_it_goes_on_waiting() -> None:
    pytest.importorskip("namesrv_engine", reason=LEFT_OUT)
    from namesrv.engines.native import Waited, run_at_once  # noqa: PLC0415 - as above

    async def wait(times: int) -> None:
        for _ in range(times):
            with pytest.raises(Waited, match="a call that is answered at once waits for something"):
                await asyncio.sleep(0)

    run_at_once(wait(0))
    run_at_once(wait(1))
    for waiting in (asyncio.sleep(0), wait(2)):
        with pytest.raises(Waited):
            run_at_once(waiting)
