"""The history of the routes in words: the journal's lines and the explanations.

Imports the routes. Begin reading in ``explain_route``.
"""
