"""The list of attacks by listener. A decorator adds each, with the bound that the server applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Function = Callable[[int, float], None]
"""Attacks a port for some seconds."""


class ByHand(NamedTuple):
    """An attack by hand."""

    attack: Function
    bound: str
    """What holds it."""
    agents: bool
    """Whether the listeners of agents, which are grpcio's, withstand it as well."""
    own_address: bool
    """Whether the attacker needs an address that is not the machine's own."""


ATTACKS: dict[str, dict[str, ByHand]] = {}
"""By listener and name."""


def on(
    listener: str, bound: str = "", *, agents: bool = False, own_address: bool = False
) -> Callable[[Function], Function]:
    """Adds a function to the attacks on a listener."""

    def add(attack: Function) -> Function:
        name = attack.__name__.replace("_", "-")
        ATTACKS.setdefault(listener, {})[name] = ByHand(attack, bound, agents, own_address)
        return attack

    return add
