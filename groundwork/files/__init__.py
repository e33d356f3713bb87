"""Files that our programs own, and values that are read from files.

A test can make every step of writing one fail. Begin reading in ``disk``.
"""
