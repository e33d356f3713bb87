"""Fleets with certificates, tokens and permits.

Imports ``programs`` and nothing of tests, bench or demo. Begin reading in ``fleet``.
"""
