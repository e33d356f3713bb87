"""The gRPC engines: one factory, and nothing else knows which one runs.

Begin reading in ``factory``.
"""
