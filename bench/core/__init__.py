"""Costs of the route tables without gRPC: ``python -m bench.core``."""
