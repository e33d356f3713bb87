"""The application that ``namesrv serve --engine envoy`` runs inside Envoy, with a probe in its event loop.

SIGUSR2, which ``bench.probed_namesrv`` has blocked, makes it log what the probe has seen since the last one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from bench.loop_probe import LoopProbe
from bench.probed_namesrv import LONGEST_LIFE_SECONDS, PROBE_SIGNAL
from namesrv.process import inside_envoy
from namesrv.server.engines.envoy.call import Receive, Send

_log = structlog.get_logger(__name__)


def application(scope: Mapping[str, Any], receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
    """The name server's application; its life is that of a probe, too."""
    answering = inside_envoy.application(scope, receive, send)
    return _probed(answering) if scope["type"] == "lifespan" else answering


# As the name server's own says it.
application._asgi_single_callable = True  # type: ignore[attr-defined]  # noqa: SLF001


async def _probed(living: Coroutine[Any, Any, None]) -> None:
    loop, probe = asyncio.get_running_loop(), LoopProbe()
    threading.Thread(target=_log_when_asked, args=(loop, probe), daemon=True).start()
    loop.call_later(LONGEST_LIFE_SECONDS, os.kill, os.getpid(), signal.SIGTERM)
    watching = asyncio.create_task(probe.watch())
    await living
    watching.cancel()


def _log_when_asked(loop: asyncio.AbstractEventLoop, probe: LoopProbe) -> None:
    """Waits for signals in a thread of its own: the event loop does not run in the main thread here."""
    while True:
        signal.sigwait([PROBE_SIGNAL])
        loop.call_soon_threadsafe(lambda: _log.info("loop_probed", **probe.take()._asdict()))
