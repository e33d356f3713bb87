"""Programs as processes, of ours and of others, started for a test, a demo or a measurement.

Begin with ``processes``: ready when they say so, ended by the test that started them.
"""
