"""Replicas: name servers that follow a leader and answer reads.

Begin reading in ``leader_stream``; ``namesrv.server.following`` assembles a replica.
"""
