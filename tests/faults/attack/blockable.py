"""A name server whose event loop sleeps whenever it gets SIGUSR1: ``python -m tests.faults.attack.blockable serve``."""

from __future__ import annotations

import signal
import time

from namesrv.__main__ import main

SLEEP_SECONDS = 0.4

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(SLEEP_SECONDS))
    main()
