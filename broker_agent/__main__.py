"""The console script ``broker-agent``, and ``python -m broker_agent``."""

from __future__ import annotations

from namesrv_common.process.program import run_program


def main() -> None:
    """Runs the program, or says which extra is missing."""
    run_program("broker-agent", "broker_agent.cli", "broker-agent")


if __name__ == "__main__":
    main()
