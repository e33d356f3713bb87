"""Connections, TLS, checks of requests, and streams of events: what stands between a browser and the answers.

Imports ``fleet``, for what streams wait for. Begin reading in ``protection``.
"""
