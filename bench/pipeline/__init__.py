"""Costs of the route pipeline, and its survival when it is killed.

Run ``python -m bench.pipeline``.
"""
