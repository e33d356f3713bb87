"""The commands: a function for each, whose parameters are its arguments and options. Begin reading in ``show``."""
