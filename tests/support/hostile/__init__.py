"""Hostile input: texts that would do harm at a terminal or in a log, frames of HTTP/2, and servers.

Begin reading in ``frames``.
"""
