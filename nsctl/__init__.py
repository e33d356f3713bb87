"""The command line of whoever runs a fleet: read it, diagnose it, write to it.

A plain gRPC client that keeps nothing; imports the groundwork only. Begin reading in ``cli``.
"""
