"""The version of the whole distribution, in one place."""

__version__ = "0.2.0"
