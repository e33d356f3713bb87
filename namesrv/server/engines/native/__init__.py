"""The native engine: gRPC over HTTP/2 in Rust (package ``namesrv_engine``), with the servicers on the event loop.

The factory alone imports it, and only where the engine is installed. Begin reading in ``server`` and ``call``.
"""
