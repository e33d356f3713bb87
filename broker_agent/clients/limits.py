"""Limits on what clients may send and hold, and the times of their liveness; docs/limits.md lists them."""

from __future__ import annotations

MAX_CONNECTIONS = 20_000
"""Most connections; at most half of the file descriptors less 256."""
KEEPALIVE_SECONDS = 5.0
"""Silence after which a client is pinged, and the time for its answer: how soon a lost client leaves."""
MAX_PENDING_REQUESTS = 20_000
"""Most calls that wait to be accepted. gRPC cancels more."""
MAX_CHANNELS = 10_000
"""Most open client channels; each costs about 50 kB. One address has half."""
MAX_HEALTH_CALLS = 10_000
"""Most open health checks and watches. One address has half."""

MAX_CLIENTS_PER_GROUP = 5_000
"""Most clients of one group: a change notifies all of them."""
MAX_GROUP_BYTES = 64 * 1024 * 1024
"""Most bytes of producers, and of consumers with their subscriptions. One address has half."""
MEMBER_BYTES = 1_024
"""Bytes that a client in a group counts."""
SUBSCRIPTION_BYTES = 1_024
"""Bytes that a subscription counts besides its text: its records and its filter."""
MAX_GROUPS_PER_HEARTBEAT = 100
"""Most groups of each kind in a heartbeat."""
MAX_SUBSCRIPTIONS = 300
"""Most topics of a consumer group in a heartbeat: with 5,000 connections, answers stay below gRPC's 4 MiB."""
MAX_GROUP_NAME_LENGTH = 255
"""Longest group name in characters (RocketMQ: Validators.CHARACTER_MAX_LENGTH)."""
MAX_CLIENT_ID_BYTES = 255
"""Longest client id: lists of ids stay below 4 MiB."""
MAX_EXPRESSION_BYTES = 4_096
"""Longest filter expression."""
MAX_DESCRIPTION_BYTES = 64
"""Longest text for a client's language, and for its version."""
MAX_PENDING_NOTICES = 1_000
"""Most changed groups that a channel has not read. Beyond it the channel closes with SLOW_READER."""
MAX_FILTER_SERVERS = 64
"""Most filter servers of the broker: name servers accept no more."""
MAX_DEAD_FILTERS = 10_000
"""Most unused filters that are kept. Beyond it the oldest is removed."""

CLIENT_SILENCE_SECONDS = 120.0
"""Silence after which a client leaves its groups (RocketMQ: channelExpiredTimeout)."""
FILTER_SERVER_SILENCE_SECONDS = 30.0
"""Silence after which a filter server leaves (RocketMQ: FILTER_SERVER_MAX_IDLE_TIME_MILLS)."""
DEAD_FILTER_SECONDS = 24 * 3600.0
"""Time that an unused filter is kept (RocketMQ: filterDataCleanTimeSpan)."""
SCAN_SECONDS = 10.0
"""Time to the first scan for silent clients, and between two (RocketMQ: ClientHousekeepingService)."""
STALL_SECONDS = 5.0
"""Delay of a scan that counts as a stall of the agent: silence then says nothing about clients."""
STALL_GRACE_SECONDS = 60.0
"""Extra time for all clients after a stall: two heartbeats."""
NOTICE_PAUSE_SECONDS = 0.2
"""Pause on a channel after a notice; notices in the pause are merged."""
NOTICES_PER_SECOND = 2_000
"""Most notices per second on all channels; with many channels, the pause is longer."""
