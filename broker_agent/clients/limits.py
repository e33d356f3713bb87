"""Limits on what clients may send and hold, each with the failure it prevents; and the times of their liveness."""

from __future__ import annotations

MAX_CONNECTIONS = 20_000
"""Most connections, or half of the file descriptors less 256: each client with a channel has one."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Largest request. A heartbeat names a client's groups and topics; parsing more would hold up the other clients."""

MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of a request: it is in memory before anything else of a call is known."""

MAX_CONCURRENT_STREAMS = 100
"""Most calls open on one connection, channels included: a process has a channel or a few."""

MAX_PENDING_REQUESTS = 20_000
"""Most calls that wait to be taken. If more come at once after a restart, gRPC answers CANCELLED to the rest."""

MAX_CHANNELS = 10_000
"""Most open client channels; each costs a task and a connection, about 50 kB together. One address has half."""

MAX_HEALTH_CALLS = 10_000
"""Most open health checks and watches. A client that checks health has a stream open for each connection."""

MAX_GROUPS = 10_000
"""Most producer groups, and most consumer groups: made-up names must not fill memory. One address has half, counted by
the first member of each."""

MAX_CLIENTS_PER_GROUP = 5_000
"""Most clients of one group: each change of a consumer group walks all of them, and their ids are one answer."""

MAX_MEMBERSHIPS = 100_000
"""Most pairs of group and client among producers, and among consumers: the scan for silence looks at all in one go.
One address has half."""

MAX_GROUPS_PER_HEARTBEAT = 100
"""Most groups of each kind in one heartbeat: all of it is one step, and joining a consumer group tells its members."""

MAX_GROUPS_PER_CLIENT = 1_000
"""Most groups of each kind that one client is in: its end leaves all of them in one step."""

MAX_SUBSCRIPTIONS = 1_000
"""Most topics of one consumer group in a heartbeat."""

MAX_SUBSCRIPTION_BYTES = 64 * 1024 * 1024
"""Most bytes of topics and expressions that all consumer groups hold together."""

MAX_GROUP_SUBSCRIPTION_BYTES = 1_500_000
"""Most bytes of topics and expressions of one consumer group: the answer with these and with MAX_CLIENTS_PER_GROUP
connections stays below the 4 MiB that clients take."""

MAX_GROUP_NAME_LENGTH = 255
"""Longest name of a group (RocketMQ: Validators.CHARACTER_MAX_LENGTH)."""

MAX_CLIENT_ID_BYTES = 255
"""Longest client id in UTF-8: with MAX_CLIENTS_PER_GROUP the lists of ids and of connections stay below the 4 MiB that
clients take."""

MAX_EXPRESSION_LENGTH = 4_096
"""Longest filter expression."""

MAX_DESCRIPTION_BYTES = 64
"""Longest language, and longest version, of a client in UTF-8: each connection in a list has both."""

MAX_HOLDER_LENGTH = 200
"""Longest text by which a channel's holder calls itself."""

MAX_PENDING_NOTICES = 1_000
"""Most groups whose change waits for the reader of one channel, a group counted once. One that is further behind is
cut."""

MAX_FILTER_SERVERS = 64
"""Most filter servers: the name servers refuse a registration with more."""

MAX_DEAD_FILTERS = 10_000
"""Most filters out of use that are kept; beyond it the one that is dead for longest goes first."""

CLIENT_SILENCE_SECONDS = 120.0
"""A client that is silent for longer leaves its groups (RocketMQ: channelExpiredTimeout)."""

FILTER_SERVER_SILENCE_SECONDS = 30.0
"""A filter server that is silent for longer leaves (RocketMQ: FILTER_SERVER_MAX_IDLE_TIME_MILLS)."""

DEAD_FILTER_SECONDS = 24 * 3600.0
"""How long a filter out of use is kept (RocketMQ: filterDataCleanTimeSpan)."""

SCAN_SECONDS = 10.0
"""Time to the first scan for silence, and between two (RocketMQ: ClientHousekeepingService)."""

STALL_SECONDS = 5.0
"""A scan that comes late by more shows that the agent itself did not run: silence then says nothing about clients."""

STALL_GRACE_SECONDS = 60.0
"""Time that all clients get after such a stall: two of their heartbeats."""

NOTICE_PAUSE_SECONDS = 0.2
"""Pause on a channel after a notice: while a thousand consumers start, each need not be told a thousand times."""

NOTICES_PER_SECOND = 2_000
"""Notices of all channels that the pauses allow for: with many channels the pause is longer, so that the consumers of a
large group that starts do not take all of the processor, at about 0.1 ms a notice."""

SLOW_READER_SECONDS = 30.0
"""How long a channel's holder may take nothing although something is to be sent, before it is cut."""
