"""The caller of a call: the principal of its certificate or token, or the peer where there are no permits."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import grpc

from namesrv.core.errors import NotAuthenticated
from namesrv.server.auth.permits import Permission, Permits, Principal

Context = grpc.aio.ServicerContext[Any, Any]

MAX_SHOWN_NAME = 127
"""Characters that name a certificate that the permits do not know."""

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""The caller of the call that is being answered: each call runs in a task, or at least a context, of its own."""


def caller_of(context: Context) -> str:
    """The name of this call's caller in the journal."""
    principal = _caller.get()
    return context.peer() if principal is None else principal.name


def check_permission(permission: Permission) -> None:
    """Checks that the caller may do more than the service of this call needs. Raises NotPermitted."""
    principal = _caller.get()
    if principal is not None:
        principal.check(permission)


def identify(context: Context, permits: Permits) -> Principal:
    """Finds out who calls, and sets what ``caller_of`` returns.

    If there is a token, it decides and not the certificate.

    Raises:
        NotAuthenticated: The call shows neither, or a token that the permits do not know.
    """
    principal = _of_token(context, permits) or _of_certificate(context, permits)
    _caller.set(principal)
    return principal


def _of_token(context: Context, permits: Permits) -> Principal | None:
    """None if the call carries none."""
    values = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
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


def _of_certificate(context: Context, permits: Permits) -> Principal:
    names = list(_certificate_names(context))
    if not names:
        raise NotAuthenticated("show a client certificate, or send 'authorization: Bearer TOKEN' in the metadata")
    # A caller with a certificate that the permits do not know has a name, but may do nothing.
    return permits.of_certificate(names) or Principal(names[0][:MAX_SHOWN_NAME])


def _certificate_names(context: Context) -> Iterator[str]:
    """URIs and DNS names of the client certificate; its common name if it has neither. None without a certificate."""
    shown = context.auth_context()
    names = [*shown.get("peer_uri", ()), *shown.get("peer_dns", ())]
    for name in names or shown.get("x509_common_name", ()):
        yield name.decode("utf-8", "replace")
