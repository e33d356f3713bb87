"""The managers of clients on virtual time."""
