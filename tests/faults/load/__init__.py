"""Single experiments with a server under load: attacks, storms, how soon a death is noticed.

Begin reading in ``hostile``.
"""
