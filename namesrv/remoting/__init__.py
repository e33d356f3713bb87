"""RocketMQ's own protocol, which unmodified brokers, clients and mqadmin speak.

Begin reading in ``connection``, then ``calls``.
"""
