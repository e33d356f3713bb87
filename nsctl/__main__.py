"""The console script ``nsctl``, and ``python -m nsctl``."""

from __future__ import annotations

from namesrv_common.process.program import run_program


def main() -> None:
    """Runs the program, or says which extra is missing."""
    run_program("nsctl", "nsctl.cli", "nsctl")


if __name__ == "__main__":
    main()
