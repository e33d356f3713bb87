"""The command that looks for what is wrong with a fleet, and says what to do about it.

Imports the other commands for what they read; imported by ``cli`` alone. Begin reading in ``command``.
"""
