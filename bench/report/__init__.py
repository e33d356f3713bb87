"""Measures the figures that pages show, keeps them in one file, and renders the pages from it.

Begin with ``sections``. ``python -m bench.report`` runs everything.
"""
