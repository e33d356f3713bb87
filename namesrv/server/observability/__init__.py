"""What is told to those who look after a name server: metrics, traces, readiness.

Begin reading in ``exports``.
"""
