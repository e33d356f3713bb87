"""Files that our programs own, and values that are made of files.

Every step of writing one is a point at which a test can let it fail. Begin reading in ``disk``.
"""
