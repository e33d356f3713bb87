"""The command line for operators of a fleet: to read it, diagnose it and change it.

A plain gRPC client that keeps nothing; imports the groundwork only. Begin reading in ``cli``.
"""
