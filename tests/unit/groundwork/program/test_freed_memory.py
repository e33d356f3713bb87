"""Memory that is free between pieces in use goes back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
from pathlib import Path
from groundwork.freed_memory import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

async def main():
    pieces = [b"x" * 64_000 for _ in range(4_000)]
    del pieces[::2]
    kept = resident()
    trimming = asyncio.create_task(return_freed_memory(0.01))
    async with asyncio.timeout(30):
        while resident() > kept - 100:
            await asyncio.sleep(0.01)
    trimming.cancel()

asyncio.run(main())
"""


def test_memory_between_pieces_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
