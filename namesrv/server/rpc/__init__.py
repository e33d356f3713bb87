"""The way of a call to its servicer: parsing, memory, errors, slow readers, calls without a task.

Imports auth. Begin reading in ``handlers``.
"""
