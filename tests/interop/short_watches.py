"""A name server whose watches end after a second at most: ``python -m tests.interop.short_watches serve``."""

from __future__ import annotations

from namesrv import limits
from namesrv.__main__ import main

if __name__ == "__main__":
    limits.MAX_WATCH_SECONDS = 1.0
    main()
