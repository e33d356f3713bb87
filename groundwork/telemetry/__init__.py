"""What programs tell of themselves: metrics, traces, and where they are sent.

Begin reading in ``signals``.
"""
