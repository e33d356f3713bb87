"""Callers and their permits: certificates, tokens, and room for calls.

Begin reading in ``admission``.
"""
