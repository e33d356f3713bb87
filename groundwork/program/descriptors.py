"""File descriptors of this process: as many as the system lets it have, and some of them for others than callers."""

from __future__ import annotations

import contextlib
import resource

MOST = 1_048_576
"""More than any program of ours needs: without a bound of the system, tables as large as its limit would be made."""
FOR_OTHERS = 256
"""Kept for files, probes and calls of our own: whoever fills the listeners must not keep the disk or health away."""


def use_all_descriptors() -> None:
    """Raises the soft limit to the hard one, as the runtimes of Java and Go do: 1,024 is for programs with select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft not in {resource.RLIM_INFINITY, wanted} and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system allows less; what there is stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_for_connections() -> int:
    """How many connections all listeners together may have under the limit of now."""
    return without_others(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def descriptors_of_listener(listeners: int = 2) -> int:
    """How many connections one of so many listeners may have: what one is flooded with leaves the others theirs."""
    return descriptors_for_connections() // listeners


def without_others(limit: int) -> int:
    """What is left of a limit for connections; a quarter of a small one is for others."""
    if limit == resource.RLIM_INFINITY:
        limit = MOST
    return limit - min(FOR_OTHERS, limit // 4)
