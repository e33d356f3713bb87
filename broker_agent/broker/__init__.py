"""The broker itself: what it is now, and what name servers are told of it.

Imports topics and settings. Begin reading in ``current_broker``.
"""
