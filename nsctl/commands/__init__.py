"""The commands: a function for each, whose parameters are the command's arguments and options.

Imported by ``cli`` alone, which gives each its name. Begin reading in ``show``, which asks for what others show, too.
"""
