"""The route tables and every change of them: pure state, with an injected clock.

Imports neither gRPC nor an event loop, threads, files or clocks. Begin reading in ``registrations``, then
``transaction`` and ``tables``.
"""
