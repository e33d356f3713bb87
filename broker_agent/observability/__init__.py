"""What is told to those who look after an agent: metrics and traces.

Begin reading in ``exports``.
"""
