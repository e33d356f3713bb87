"""The version of the whole distribution."""

__version__ = "0.2.0"
