"""The gRPC contract: translates requests to records and results to messages.

Begin reading in ``registration`` and ``route``.
"""
