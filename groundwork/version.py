"""The version of the whole distribution, in one place."""

__version__ = "0.1.0"
