"""What the garbage collector has seen after the steps of a change."""

from __future__ import annotations

import gc

import pytest

from namesrv.app.writer import MIDDLE, collecting
from namesrv.core.pace import Sliced, run_steps


def test_rows_are_exempt_after_the_step_that_made_them() -> None:
    rows = []

    def change() -> Sliced[None]:
        rows.append(tuple([b"fragment"]))  # noqa: C409 - a literal would be a constant, which is exempt already
        assert gc.is_tracked(rows[-1])
        yield
        assert not gc.is_tracked(rows[-1])

    run_steps(collecting(change()))


def test_a_table_reaches_the_oldest_generation_while_it_grows() -> None:
    table: dict[str, list[bytes]] = {}

    def is_old() -> bool:
        return any(known is table for known in gc.get_objects(generation=2))

    def change() -> Sliced[None]:
        for step in range(2 * MIDDLE):
            table[str(step)] = [b"fragment"]
            yield
        assert is_old()

    assert not is_old()
    run_steps(collecting(change()))


def test_result_and_error_of_the_steps_are_handed_on() -> None:
    def fails() -> Sliced[None]:
        yield
        raise ValueError("no such topic")

    def succeeds() -> Sliced[str]:
        yield
        return "done"

    assert run_steps(collecting(succeeds())) == "done"
    with pytest.raises(ValueError, match="no such topic"):
        run_steps(collecting(fails()))
