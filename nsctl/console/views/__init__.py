"""The views of the page: what each shows, made of what name servers hold.

Begin reading in ``overview`` and ``brokers``.
"""
