"""What the views of the page show, made of what name servers hold.

Imports ``fleet``, and of ``log_in`` who a person is; ``page`` imports it. Begin reading in ``overview``.
"""
