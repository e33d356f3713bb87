"""Pages of digests. A thread computes missing digests until rows and digests are of one moment."""

from __future__ import annotations

from functools import partial

from namesrv.app.fair_queue import OWN
from namesrv.app.worker import Worker
from namesrv.core.digests import DigestedBroker, Position, RouteDigests
from namesrv.core.errors import overloaded

MAX_TRIES = 20
"""Most tries at a page while one of its groups changes all the time. Each takes some 2 ms for 1,000 topics."""


async def digest_page(
    digests: RouteDigests, reader: Worker, after: Position, limit: int, owner: str = OWN
) -> list[DigestedBroker]:
    """The brokers after a position, at most ``limit``, each with the digest of its group.

    Raises:
        OVERLOADED: A group changes faster than its digest can be made.
    """
    for _ in range(MAX_TRIES):
        if missing := digests.missing(after, limit):
            await reader.run(partial(digests.compute, missing), owner)
        page = digests.page(after, limit)
        if page is not None:
            return page
    raise overloaded("a broker group changes all the time, faster than its digest can be made")
