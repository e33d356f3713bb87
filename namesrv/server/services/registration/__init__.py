"""RegistrationService: what brokers and their agents call.

Begin reading in ``servicer``.
"""
