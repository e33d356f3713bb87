"""The read-only copy as a server: the stream from its leader, its calls, and those that it hands on.

Begin reading in ``server``.
"""
