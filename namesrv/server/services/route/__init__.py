"""RouteService: what producers, consumers, tools and the pipeline call.

Begin reading in ``lookups``.
"""
