"""Work beside the calls: the table writer, the scans, and the open streams of channels and watches.

Begin reading in ``table_writer``.
"""
