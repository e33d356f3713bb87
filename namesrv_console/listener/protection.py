"""Checks of every request, and the headers of every answer to a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from groundwork.endpoints import is_ip_address

ACTION_HEADER = "X-Namesrv-Console"
"""Must be there on whatever changes something: no form or link of another page can send it."""

_PORT = re.compile(r"(:[0-9]{1,5})?")

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # Text that becomes markup in a script is an error in the browser, whoever wrote the script.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer."""


def problem(status: int, reason: str, message: str) -> web.Response:
    """An error as the page gets it."""
    return web.json_response({"problem": {"reason": reason, "message": message}}, status=status)


def check_requests(host_names: Collection[str], lets_in: Callable[[web.Request], bool] = lambda _: True) -> Middleware:
    """Makes the check of every request.

    Args:
        host_names: Names, besides localhost and addresses, by which browsers may reach the page. Another site's name
            that points here (DNS rebinding) makes a browser take this page for that site's; an address cannot.
        lets_in: Whether who asks has logged in. The page itself, which holds nothing, is for everybody.
    """
    allowed = {"localhost", *(name.lower().rstrip(".") for name in host_names)}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = _refused(request, allowed)
        if answer is None and request.path.startswith("/api/") and not lets_in(request):
            answer = problem(401, "NOT_LOGGED_IN", "log in, or send 'Authorization: Bearer TOKEN'")
        if answer is None:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = problem(error.status, error.reason.upper().replace(" ", "_"), error.text or error.reason)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    return check


def _refused(request: web.Request, allowed: Collection[str]) -> web.StreamResponse | None:
    host = _host_of(request.host)
    if host not in allowed and not is_ip_address(host):
        return problem(421, "HOST_NOT_ALLOWED", f"the host name {host[:255]!r} is not allowed; see --host-name")
    if request.method in ("GET", "HEAD"):
        return None
    foreign = _why_foreign(request)
    if foreign is not None:
        return problem(403, "NOT_FROM_THIS_PAGE", foreign)
    if request.content_type != "application/json":
        return problem(415, "NOT_JSON", "the request is not application/json")
    return None


def _why_foreign(request: web.Request) -> str | None:
    """Why a request that changes something was not sent by our page; None if it was."""
    if request.headers.get(ACTION_HEADER) != "1":
        return f"the header {ACTION_HEADER} is missing"
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return "the request comes from another site"
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.host.lower():
        return f"the request comes from {origin[:255]!r}"
    return None


def _host_of(header: str) -> str:
    """The host without its port, lower case; brackets of an IPv6 address stay off."""
    if header.startswith("["):
        host, closed, port = header[1:].partition("]")
        return host.lower() if closed and _PORT.fullmatch(port) else header
    return header.partition(":")[0].lower().rstrip(".")
