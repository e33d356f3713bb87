"""The page of figures, with plots.

Run ``python -m bench.report``.
"""
