"""The program that spark-submit starts: ``route-pipeline``, with Spark's master and settings as submitted."""

from __future__ import annotations

from route_pipeline.cli import main

main()
