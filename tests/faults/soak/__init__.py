"""A run of hours: what the processes take meanwhile, and the page that tells it.

Begin reading in ``run``.
"""
