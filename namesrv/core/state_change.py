"""A change of the state in two parts: a long preparation, on any thread, and a short commit on the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from namesrv.core.state import RouteState

ANY_NUMBER = 1_000_000
"""Stands for the number of topics of a change where that is not known before its preparation."""

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class StateChange(Protocol[ResultT_co]):
    """One change. Only one at a time is between the beginning of its preparation and its end."""

    state: RouteState

    @property
    def topics(self) -> int:
        """About how many topics it touches: what its preparation costs."""

    def prepare(self) -> None:
        """Works out what will change, and shows nothing of it. Reads tables, intents and policy; has yield points.

        Raises:
            Refused: It cannot be made.
        """

    def commit(self) -> ResultT_co:
        """Makes it the state, in one step. Checks once more what may have changed since it was prepared.

        Raises:
            Refused: It cannot be made now; nothing has changed.
        """


class ReadingChange(StateChange[ResultT_co], Protocol[ResultT_co]):
    """A change with a part that needs no tables that stand still. It is done before other changes have to wait."""

    @property
    def topics_to_read(self) -> int:
        """About how many topics that part reads."""

    def read(self) -> None:
        """Does that part, with yield points. Raises Refused if what it reads breaks a rule."""


def apply_now(change: StateChange[ResultT]) -> ResultT:
    """Makes a change where nobody else runs: at a start, in tests and benches."""
    change.prepare()
    return change.commit()


def apply_all_now(changes: Iterator[StateChange[list[ResultT]]]) -> list[ResultT]:
    """The same with changes that follow from each other. Returns all their results."""
    return [result for change in changes for result in apply_now(change)]
