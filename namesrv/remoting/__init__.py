"""RocketMQ's own protocol as a front of the name server: unmodified brokers, clients and mqadmin use it.

It is above the server's rooms, whose stores, table writer and journal its calls go through. Begin reading in ``front``.
"""
