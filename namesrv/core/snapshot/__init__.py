"""All tables at one revision: held, pinned, written out and read back.

Imports the tables. Begin reading in ``route_snapshot``.
"""
