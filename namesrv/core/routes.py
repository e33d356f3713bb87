"""The route tables of one name server, and all that changes them, as callers get them."""

from __future__ import annotations

from typing import NamedTuple, Self

from namesrv.core.heartbeats import Heartbeats
from namesrv.core.operator_changes import OperatorChanges
from namesrv.core.registrations import Registrations
from namesrv.core.removals import Removals
from namesrv.core.state import RouteState


class Routes(NamedTuple):
    """The state, and each kind of change of it."""

    state: RouteState
    registrations: Registrations
    removals: Removals
    heartbeats: Heartbeats
    operator_changes: OperatorChanges

    @classmethod
    def of(cls, state: RouteState) -> Self:
        return cls(state, Registrations(state), Removals(state), Heartbeats(state), OperatorChanges(state))
