"""Groups of clients: consumers, producers, their filters (RocketMQ: ConsumerManager, ProducerManager).

Begin reading in ``group_members``.
"""
