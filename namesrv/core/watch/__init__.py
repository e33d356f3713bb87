"""Watches of routes, without streams and event loop. ``hub`` finds those that a change affects, for ``messages``.

A watch holds its subscription and the topics of it that changed since its last message. A message has their current
routes. So a slow client skips intermediate states, and a topic is sent once after any number of changes. The hub reads
each change once for all watches.
"""
