"""Connections to gRPC servers, and the certificates on both sides of them.

Both are made anew when the files that they come from change. Begin reading in ``channels``.
"""
