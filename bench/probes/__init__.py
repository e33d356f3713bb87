"""Probes: what holds up an event loop, and a name server with one in its loop. They measure, and start nothing.

Begin with ``loop``.
"""
