"""Programs for those who work on the project: pages that are generated, images, the distribution, faults.

Begin reading in CONTRIBUTING.md.
"""
