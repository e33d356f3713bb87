"""Each attack on each listener, beside an honest client; a table, and whether all was withstood.

Begin reading in ``runner``.
"""
