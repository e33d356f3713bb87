"""Each attack on each listener, next to an honest client; a table, and whether all was withstood.

Begin reading in ``runner``.
"""
