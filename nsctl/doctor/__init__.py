"""The command that looks for what is wrong with a fleet, and says what to do about it. Begin with ``command``."""
