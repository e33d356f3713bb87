"""Hostile clients of a listener of metrics and health."""

from __future__ import annotations

from tests.faults.attack.kinds import ByHand, flood, hold, repeat, say_no_more, trickle

CONNECTIONS = 60
AGAIN_SECONDS = 0.5
"""After which connections are opened anew: the server may have cut some."""
BOUND = "connections by address, a deadline for the request"
PAGE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
BYTES = 150

HTTP = {
    "silent": ByHand(hold(b"", CONNECTIONS, AGAIN_SECONDS), BOUND),
    # Slowloris: requests that never end.
    "trickling": ByHand(trickle(b"GET /", [b"a"] * BYTES, CONNECTIONS, BYTES), BOUND),
    "half-open": ByHand(say_no_more(b"POST /api/actions HTTP/1.1\r\nContent-Length: 9\r\n"), BOUND),
    "not-reading": ByHand(hold(PAGE * 20, CONNECTIONS, AGAIN_SECONDS), BOUND),
    "flooding": ByHand(flood(lambda _: PAGE, count=20), BOUND),
    "garbage": ByHand(repeat(lambda: bytes(range(256)) * 8, 1, 0.005), BOUND),
}
"""The attacks on a listener of HTTP, by name."""
