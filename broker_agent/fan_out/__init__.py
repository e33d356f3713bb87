"""One registration to all name servers at once (RocketMQ: BrokerOuterAPI).

Imports ``target``. Begin reading in ``broker_outer_api``.
"""
