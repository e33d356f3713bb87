"""Measurements behind the figures of the pages.

Programs that start the others as processes. README.md says what each figure means; begin reading there.
"""
