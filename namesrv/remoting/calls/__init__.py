"""RocketMQ's requests, by subject: each is answered from the tables, or through the services of the contract.

Begin reading in ``table``.
"""
