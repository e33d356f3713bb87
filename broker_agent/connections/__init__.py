"""Connections to name servers: how they are made, watched and opened again.

Begin reading in ``options``.
"""
