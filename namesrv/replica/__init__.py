"""Replicas: name servers that follow a leader and answer reads.

Begin reading in ``leader_stream``.
"""
