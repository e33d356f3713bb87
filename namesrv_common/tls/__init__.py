"""Certificates and keys, and the TLS of a listener."""
