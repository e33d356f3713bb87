"""What people ask of the log: differences, changes, tables and pages.

Imports the log. Begin reading in ``comparison``.
"""
