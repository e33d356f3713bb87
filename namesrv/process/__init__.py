"""A name server as one process or several: the event loop, the workers, and the program inside Envoy.

Only the command line imports it. Begin reading in ``serving``.
"""
