"""A name server as a process: its event loop, from its settings to its end.

Only the command line imports it. Begin reading in ``serving``.
"""
