"""Tools of the pages: generators, screenshots and the prose lint.

Begin reading in ``generated_page``.
"""
