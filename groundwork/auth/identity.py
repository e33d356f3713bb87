"""The credentials that a call shows: its bearer token, and the names in the certificate of its connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from groundwork.auth.permits import Permits, Principal
from groundwork.errors import NotAuthenticated

MAX_SHOWN_NAME = 127
"""Characters that name a certificate that the permits do not know."""


class Call(Protocol):
    """What a servicer's context of either kind, asyncio or not, tells of a caller."""

    def invocation_metadata(self) -> Any:
        """Pairs of key and value, or None."""

    def auth_context(self) -> Mapping[str, Any]:
        """What is known of the certificate."""

    def peer(self) -> str:
        """The address, as gRPC writes it."""


def of_token(call: Call, permits: Permits) -> Principal | None:
    """The principal of a call's token; None if the call carries none. Raises NotAuthenticated if it is no good."""
    values = [value for key, value in call.invocation_metadata() or () if key == "authorization"]
    if not values:
        return None
    if len(values) > 1:
        raise NotAuthenticated("there is more than one authorization in the metadata; send one")
    scheme, _, token = str(values[0]).partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthenticated("authorization has another scheme than Bearer; send 'Bearer TOKEN'")
    principal = permits.of_token(token.strip())
    if principal is None:
        raise NotAuthenticated("the bearer token is not one of the permits")
    return principal


def of_certificate(names: Sequence[str], permits: Permits) -> Principal:
    """The principal of the names in a certificate; one that may do nothing if the permits know none of them.

    Raises:
        NotAuthenticated: There is no name, so there is no certificate.
    """
    if not names:
        raise NotAuthenticated("show a client certificate, or send 'authorization: Bearer TOKEN' in the metadata")
    # A caller with a certificate that the permits do not know has a name, but may do nothing.
    return permits.of_certificate(names) or Principal(names[0][:MAX_SHOWN_NAME])


def shown_names(call: Call) -> Iterator[str]:
    """URIs and DNS names of the client certificate; its common name if it has neither. None without a certificate."""
    shown = call.auth_context()
    names = [*shown.get("peer_uri", ()), *shown.get("peer_dns", ())]
    for name in names or shown.get("x509_common_name", ()):
        yield name.decode("utf-8", "replace")
