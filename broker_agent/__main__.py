"""Runs the agent as ``python -m broker_agent``."""

from broker_agent.cli import main

main()
