"""What a program is around its work: its command line, settings, logs, signals, and how it ends.

Programs import it; libraries of ours do not need it. Begin reading in ``settings``.
"""
