"""Logs of version 0.2, which had no commits: how they become logs of this version.

Only the command ``take-over`` imports it. Begin reading in ``take_over``.
"""
