"""Measurements behind ``make bench``. README.md says what each figure means."""
