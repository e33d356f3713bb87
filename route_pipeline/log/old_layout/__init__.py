"""Logs of version 0.2, which had no commits: how they become logs of this version."""
