"""The gRPC contract: translates requests to the core and results back to messages.

Begin reading in ``registration`` and ``route``.
"""
