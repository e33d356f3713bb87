"""One name server as a reader asks it: a connection, its state and pins, a stream of its snapshot or of its changes.

Knows neither Spark nor Arrow. Imported by ``source.rows`` and the readers. Begin reading in ``connection``.
"""
