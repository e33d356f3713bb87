"""Reports from the log: differences, changes, tables and pages.

Imports the log. Begin reading in ``comparison``.
"""
