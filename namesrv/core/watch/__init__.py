"""Watches of routes, without streams and event loop.

``subscription`` is what a watch asks for, ``affected`` what a change alters. ``hub`` brings both together, and
``messages`` makes the next message of a watch.

A watch holds its subscription and the topics of it that changed since its last message. A message has their current
routes. So a slow client skips intermediate states, and a topic is sent once after any number of changes. The hub reads
each change once for all watches.
"""
