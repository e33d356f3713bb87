"""The sources of routes: name servers that are watched and asked in turn, and a cache on disk.

Imports ``route_client.routes``. Begin reading in ``route_source``.
"""
