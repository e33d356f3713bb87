"""Limits on what clients may send and hold, and the times of their liveness. docs/limits.md says what each prevents."""

from __future__ import annotations

MAX_CONNECTIONS = 20_000  # or half of the file descriptors less 256
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_METADATA_BYTES = 16 * 1024
KEEPALIVE_SECONDS = 5.0  # silence before a ping, and the time for its answer: how soon a lost client leaves
MAX_CONCURRENT_STREAMS = 100
MAX_PENDING_REQUESTS = 20_000
MAX_CHANNELS = 10_000  # each costs about 50 kB; one address has half
MAX_HEALTH_CALLS = 10_000

MAX_CLIENTS_PER_GROUP = 5_000
MAX_GROUP_BYTES = 64 * 1024 * 1024  # of producers, and of consumers with their subscriptions; one address has half
MEMBER_BYTES = 1_024  # what a client in a group counts
SUBSCRIPTION_BYTES = 1_024  # what a subscription counts besides its text: its records and its filter
MAX_GROUPS_PER_HEARTBEAT = 100
MAX_SUBSCRIPTIONS = 300  # with the longest expressions and 5,000 connections, an answer stays below gRPC's 4 MiB
MAX_GROUP_NAME_LENGTH = 255  # RocketMQ: Validators.CHARACTER_MAX_LENGTH
MAX_CLIENT_ID_BYTES = 255
MAX_EXPRESSION_BYTES = 4_096
MAX_DESCRIPTION_BYTES = 64  # of the language, and of the version
MAX_PENDING_NOTICES = 1_000
MAX_FILTER_SERVERS = 64
MAX_DEAD_FILTERS = 10_000

CLIENT_SILENCE_SECONDS = 120.0  # RocketMQ: channelExpiredTimeout
FILTER_SERVER_SILENCE_SECONDS = 30.0  # RocketMQ: FILTER_SERVER_MAX_IDLE_TIME_MILLS
DEAD_FILTER_SECONDS = 24 * 3600.0  # RocketMQ: filterDataCleanTimeSpan
SCAN_SECONDS = 10.0  # to the first scan, and between two (RocketMQ: ClientHousekeepingService)
STALL_SECONDS = 5.0  # a scan that is later: the agent itself stood still, and silence says nothing about clients
STALL_GRACE_SECONDS = 60.0  # two heartbeats
NOTICE_PAUSE_SECONDS = 0.2  # on a channel after a notice
NOTICES_PER_SECOND = 2_000  # on all channels together: with many, the pause is longer
SLOW_READER_SECONDS = 30.0
