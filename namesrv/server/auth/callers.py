"""The caller of a call: the principal of its certificate or token, or the peer where there are no permits."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import grpc

from groundwork.auth.identity import of_certificate, of_token, shown_names
from groundwork.auth.permits import Permission, Permits, Principal
from groundwork.shares import Sharer, sharer_at

Context = grpc.aio.ServicerContext[Any, Any]

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""The caller of the call that is being answered: each call runs in a task, or at least a context, of its own."""


def caller_of(context: Context) -> str:
    """The name of this call's caller in the journal."""
    principal = _caller.get()
    return context.peer() if principal is None else principal.name


def sharer_of(context: Context) -> Sharer:
    """Whose shares this call takes: its caller's by name; without permits, those of the address."""
    principal = _caller.get()
    return sharer_at(context.peer()) if principal is None else Sharer(principal.name, principal.administer)


def owner() -> str:
    """Who makes this call, by the permits; empty where there are none: nobody has proved then who he is."""
    principal = _caller.get()
    return "" if principal is None else principal.name


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
    principal = of_token(context, permits) or of_certificate(list(shown_names(context)), permits)
    _caller.set(principal)
    return principal
