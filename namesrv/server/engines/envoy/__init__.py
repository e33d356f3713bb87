"""The envoy engine: this program inside Envoy (PyPI pyvoy), and gRPC as an application of ASGI, the thinnest way."""
