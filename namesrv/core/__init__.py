"""The route tables: pure state, with an injected clock.

Imports neither gRPC nor an event loop, threads, files or clocks. Rooms, each importing only those after it:
``replica``, ``streams``, ``watch`` and ``history``, ``routes``, ``snapshot`` and ``liveness``, ``tables``,
``records``. Begin reading in ``routes.route_info_manager``.
"""
