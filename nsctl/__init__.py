"""The command line of whoever runs a fleet: see it, understand it, act on it."""
