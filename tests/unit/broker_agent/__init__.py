"""Tests of the broker agent that need no other process."""
