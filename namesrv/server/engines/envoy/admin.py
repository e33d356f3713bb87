"""Envoy's administration, over a socket that only this user can open."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

ADMIN_SOCKET = "admin"
"""Its name in the private folder."""

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 20


class AdminFailed(Exception):
    """Envoy did not do what it was asked; the text says why."""


class EnvoyAdmin:
    """Asks the Envoy that this process runs in."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def post(self, target: str) -> None:
        """Makes Envoy do something. Raises AdminFailed."""
        await self._ask("POST", target)

    async def number(self, stat: str) -> int:
        """One of its counters or gauges by its full name; 0 if it has none of that name. Raises AdminFailed."""
        found = re.search(
            rf"^{re.escape(stat)}: (\d+)", await self._ask("GET", f"/stats?filter=^{stat}$"), re.MULTILINE
        )
        return int(found.group(1)) if found else 0

    async def _ask(self, method: str, target: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._asked(method, target)
        except (OSError, TimeoutError) as error:
            raise AdminFailed(f"{method} {target}: {str(error) or 'no answer'}") from error

    async def _asked(self, method: str, target: str) -> str:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(
                f"{method} {target} HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode(
                    "ascii"
                )
            )
            answer = await reader.read(MAX_ANSWER_BYTES)
            while more := await reader.read(MAX_ANSWER_BYTES - len(answer)):
                answer += more
        finally:
            writer.close()
        head, _, body = answer.decode("latin-1").partition("\r\n\r\n")
        status = head.partition("\r\n")[0]
        if " 200" not in status:
            raise AdminFailed(f"{method} {target}: {status or 'no answer'}")
        return body
