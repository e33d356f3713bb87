"""Connections to gRPC servers, and the certificates on both sides of them.

Both are renewed when their files change. Begin reading in ``channels``.
"""
