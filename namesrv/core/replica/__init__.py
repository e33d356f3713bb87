"""A read-only copy of another name server's tables, made from its snapshot and its changes.

Imports everything below it. Begin reading in ``manager``.
"""
