"""The composition: how a name server is wired, started and ended.

Begin reading in ``server``.
"""
