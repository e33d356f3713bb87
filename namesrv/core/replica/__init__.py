"""A read-only copy of another name server's tables, made of its snapshot and its changes.

Imports everything below it. Begin reading in ``manager``.
"""
