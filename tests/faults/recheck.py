"""Checks a kept history again: ``python -m tests.faults.recheck history.jsonl``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.history import read_history
from tests.faults.invariants import violations


def main(path: str) -> int:
    """Prints what is broken; returns 1 if anything is."""
    broken = violations(read_history(Path(path)))
    sys.stdout.write("".join(f"{violation}\n" for violation in broken) or "all invariants hold\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
