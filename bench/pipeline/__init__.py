"""What the route pipeline costs, and whether it survives being killed.

Run ``python -m bench.pipeline``.
"""
