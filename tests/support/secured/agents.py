"""Agents in a fleet with certificates."""

from __future__ import annotations

from tests.support.secured.fleet import Place


def agent_flags(place: Place, caller: str) -> tuple[str, ...]:
    """An agent that shows a caller's certificate on both sides."""
    pair = place.callers[caller]
    return (
        *("--tls-ca", str(place.authority.path)),
        *("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)),
    )


def give_agent_its_address(place: Place) -> None:
    """The broker's certificate is for its listeners, too."""
    place.authority.sign("broker", ["broker.example", "localhost"], ips=["127.0.0.1"])
