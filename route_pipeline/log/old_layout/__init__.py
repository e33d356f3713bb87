"""Logs of layout 2, which had no commits: how they become logs of layout 3.

Only the command ``take-over`` imports it. Begin reading in ``take_over``.
"""
