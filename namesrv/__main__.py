"""The console script ``namesrv``, and ``python -m namesrv``."""

from __future__ import annotations

from namesrv_common.process.program import run_program


def main() -> None:
    """Runs the program, or says which extra is missing."""
    run_program("namesrv", "namesrv.cli", "namesrv")


if __name__ == "__main__":
    main()
