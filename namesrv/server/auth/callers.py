"""The caller of a call: the principal of its certificate or token, or the peer where there are no permits."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import grpc

from groundwork.auth.identity import of_certificate, of_token, shown_names
from groundwork.auth.permits import Permission, Permits, Principal

Context = grpc.aio.ServicerContext[Any, Any]

FORWARDED_FOR_KEY = "namesrv-forwarded-for"
FORWARDED_NAME_KEY = "namesrv-forwarded-name-bin"
"""Metadata in which a worker process names the caller whose call it hands on: the peer, and each name of its
certificate.
"""

_WORKER = Principal("worker", lookup=True, administer=True)
"""The caller when a worker process calls for itself."""

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""The caller of the call that is being answered: each call runs in a task, or at least a context, of its own."""


def caller_of(context: Context) -> str:
    """The name of this call's caller in the journal."""
    principal = _caller.get()
    return _peer(context) if principal is None else principal.name


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
    if _is_worker(context) and _forwarded(context, FORWARDED_FOR_KEY) == []:
        principal = _WORKER
    else:
        principal = of_token(context, permits) or of_certificate(list(certificate_names(context)), permits)
    _caller.set(principal)
    return principal


def _is_worker(context: Context) -> bool:
    """Whether a worker process of ours calls: nobody else reaches a Unix socket of this name server."""
    return context.peer().startswith("unix:")


def _forwarded(context: Context, wanted: str) -> list[str]:
    """The caller that a worker names; only workers are believed."""
    if not _is_worker(context):
        return []
    values = (value for key, value in context.invocation_metadata() or () if key == wanted)
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]


def _peer(context: Context) -> str:
    """The address of the caller, also if a worker has handed its call on."""
    return next(iter(_forwarded(context, FORWARDED_FOR_KEY)), None) or context.peer()


def certificate_names(context: Context) -> Iterator[str]:
    """URIs and DNS names of the client certificate; its common name if it has neither. None without a certificate."""
    if _is_worker(context):
        yield from _forwarded(context, FORWARDED_NAME_KEY)
        return
    yield from shown_names(context)
