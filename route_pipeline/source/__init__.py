"""The Spark data source: snapshots and changes of name servers as partitions of Arrow batches.

Begin reading in ``data_source``.
"""
