"""The five tables, and the edit that is prepared aside and published in one step.

Imports the records. Begin reading in ``schema`` and ``edit``.
"""
