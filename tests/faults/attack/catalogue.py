"""All attacks, and how to run one by hand: ``python -m tests.faults.attack.catalogue LISTENER NAME PORT SECONDS``.

It attacks loopback only. The modules ``on_*`` have the attacks, each with its bound.
"""

from __future__ import annotations

import sys

from tests.faults.attack import addresses
from tests.faults.attack.on_grpc import GRPC
from tests.faults.attack.on_http import HTTP
from tests.faults.attack.on_remoting import REMOTING
from tests.faults.attack.runner import Attack

ATTACKS = {"grpc": GRPC, "remoting": REMOTING, "metrics": HTTP}
"""By listener and name."""
EXTRA_SECONDS = 10.0
"""What attacks that end by themselves may take beyond their time."""


def on_listener(listener: str, port: int, seconds: float, attacked: str = "namesrv") -> list[Attack]:
    """Returns the attacks by hand that this machine can make.

    Args:
        listener: Its key in ``ATTACKS``.
        port: Where it is.
        seconds: How long each lasts.
        attacked: ``namesrv``, ``agent`` or ``clients``: the program and listener whose calls they make.
    """
    environment = {"ATTACKED": attacked, **_addresses()}
    return [
        Attack(
            name,
            one.bound if attacked == "namesrv" else "grpcio's own (docs/limits.md)",
            (*_BY_HAND, listener, name, str(port), str(seconds)),
            seconds + EXTRA_SECONDS,
            environment,
        )
        for name, one in ATTACKS[listener].items()
        if (attacked == "namesrv" or one.agents) and (addresses.are_here() or not one.own_address)
    ]


_BY_HAND = (sys.executable, "-m", "tests.faults.attack.catalogue")


def _addresses() -> dict[str, str]:
    """The addresses that attackers and honest clients dial, as programs that attack read them."""
    if not addresses.are_here():
        return {}
    return {"ATTACKED_AT": addresses.ATTACKER}


if __name__ == "__main__":
    listener_name, attack_name, port_text, seconds_text = sys.argv[1:]
    ATTACKS[listener_name][attack_name].attack(int(port_text), float(seconds_text))
