"""Exit codes of the commands."""

from __future__ import annotations

FOUND = 1
"""``diff`` or ``compare-rocketmq`` found a difference, ``doctor`` a problem, or ``agent status`` a registration that is
missing."""
USAGE = 2
"""The command line, the environment or the contexts file makes no sense; nobody was asked."""
REFUSED = 3
"""A name server or agent answered with an error: there is no such topic or broker, or it did not take the change."""
UNREACHABLE = 4
"""A name server or agent did not answer. What the others said is shown."""
WARNED = 5
"""``doctor`` found a warning and no problem: cron may tell the two apart."""
