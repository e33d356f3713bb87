"""The clients of the broker: producers, consumers, filter servers (RocketMQ: ClientHousekeepingService and managers).

``ClientManagers`` holds the state and the scan for silence; ``ClientServer`` is the listener that clients call. The
controller, the listener for operators and the metrics import them. Begin reading in ``clients``.

- The key of a client is its channel, as in RocketMQ, where it is the TCP connection. Here it is a stream that the
  client holds open; a client without one is keyed by its id and only times out.
- The managers are thread-safe, because the listener's event loop, the scan and the synchronous fast listener use them.
  Producers and consumers share one lock, so that a heartbeat is one step. Listeners of consumer groups run under it, in
  the order of the events; those of filter servers run outside all locks.
- The listener is asyncio on a thread of its own: on gRPC's synchronous server each channel would hold a thread.
- Notices of changes are best effort and coalesced: one for each group until the client takes it, with a pause after it.

Decided differently than in RocketMQ: the scan tells a group whom it has removed; a silent membership of a client that
is alive otherwise ends without its channel; the list of ids has each id once; a group that goes over from a filter
expression to tags loses its filter; empty producer groups go (RocketMQ 5 does that, too), and broadcasting groups have
no notices (as in RocketMQ 5). A heartbeat does not create the group's retry topic.
"""
