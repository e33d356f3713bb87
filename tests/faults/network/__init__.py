"""Links that are cut, slowed and narrowed: a proxy on loopback, and hosts of network namespaces.

Begin reading in ``network``.
"""
