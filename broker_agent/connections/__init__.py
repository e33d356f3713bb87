"""How connections to name servers are made, watched and opened again.

Begin reading in ``options``.
"""
