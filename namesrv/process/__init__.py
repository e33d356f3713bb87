"""A name server as one process or several: the event loop and the workers.

Only the command line imports it. Begin reading in ``serving``.
"""
