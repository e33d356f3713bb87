"""The broker's producers, consumers and filter servers (RocketMQ: ClientHousekeepingService and managers).

Begin reading in ``managers``. The event loop of ``ClientServer``, which clients call, changes the tables under one
lock; threads of the fast listener and of the metrics read them. The key of a client is its channel, as in RocketMQ: a
stream that it holds open. A client without one is keyed by its id and leaves by timeout only.

Decided differently than in RocketMQ: the scan notifies the groups that it removes somebody from. A silent membership
of a client that is alive otherwise ends without its channel. A group that changes from an expression to tags loses its
filter. A heartbeat creates no retry topic. As in RocketMQ 5, empty producer groups go and broadcasting groups have no
notices.
"""
