"""The agent's listener for operators and other agents: its server, its calls, its status.

Imports everything below; only the controller imports it. Begin reading in ``server``.
"""
