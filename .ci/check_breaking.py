"""Compares the wire contract with the commit before: a change that breaks clients fails.

With uncommitted changes in protos/ the commit before is the last one, otherwise its parent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Runs ``buf breaking``; returns its exit code. Skips, and says so, where there is nothing to compare with."""
    changed = _git("status", "--porcelain", "--", "protos")
    base = "HEAD" if changed else "HEAD~1"
    if _git("ls-tree", "-r", "--name-only", base, "--", "protos") in (None, ""):
        sys.stdout.write(f"buf breaking: skipped, {base} has no wire contract to compare with\n")
        return 0
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run([buf, "breaking", "--against", f".git#ref={base}"], cwd=ROOT, check=False).returncode


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
