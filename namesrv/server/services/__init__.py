"""The calls of the contract, a package for each service, and the rules on what they are asked.

Imports everything below; only the assembled servers import it. Begin reading in a
service's ``requests``, which says what may be asked.
"""
