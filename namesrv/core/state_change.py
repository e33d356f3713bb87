"""A change of the state in two parts: a long preparation, on any thread, and a short commit on the event loop."""

from __future__ import annotations

from typing import Protocol, TypeVar

from namesrv.core.state import RouteState

ANY_NUMBER = 1_000_000
"""Stands for the number of topics of a change where that is not known before its preparation."""

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
