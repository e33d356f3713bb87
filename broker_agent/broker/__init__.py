"""The broker itself: its present state, and the registrations made of it.

Imports topics and settings. Begin reading in ``current_broker``.
"""
