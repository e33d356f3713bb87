"""Routes and tables as tests hold and compare them: rows, histories, a recorded life of a fleet.

Begin reading in ``route_rows``.
"""
