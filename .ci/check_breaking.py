"""Compares the wire contract with the version before, the commit that tests/skew/PREVIOUS names.

A change that breaks a client of that version fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PREVIOUS = ROOT / "tests" / "skew" / "PREVIOUS"


def main() -> int:
    """Runs ``buf breaking``; returns its exit code. Skips, and says so, where there is no whole history."""
    base = PREVIOUS.read_text(encoding="utf-8").strip()
    if not _git("ls-tree", "-r", "--name-only", base, "--", "protos"):
        if (_git("rev-parse", "--is-shallow-repository", "HEAD~1") or "").startswith("false"):
            sys.stderr.write(f"buf breaking: history has no commit {base[:8]} with protos; correct {PREVIOUS}\n")
            return 1
        sys.stdout.write(f"buf breaking: skipped, there is no history that has commit {base[:8]}\n")
        return 0
    against = f".git#ref={base},subdir=protos"
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run([buf, "breaking", "protos", "--against", against], cwd=ROOT, check=False).returncode


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
