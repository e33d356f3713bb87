"""The broker's topics: the table, the file that holds it, and the calls that change it (RocketMQ: TopicConfigManager).

Begin reading in ``manager``.
"""
