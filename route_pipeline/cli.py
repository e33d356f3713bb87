"""The start of the program ``route-pipeline``. The wheel brings no Spark."""

from __future__ import annotations

from namesrv_common.process.program import run_program


def main() -> None:
    """Runs the program, or says which extra is missing."""
    run_program("route-pipeline", "route_pipeline.commands", "route-pipeline")
