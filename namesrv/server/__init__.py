"""The composition: how a name server or a replica is wired, started and ended.

Begin reading in ``server``.
"""
