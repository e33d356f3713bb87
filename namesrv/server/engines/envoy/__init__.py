"""The envoy engine: this program inside Envoy (PyPI pyvoy), with gRPC as a thin ASGI application."""
