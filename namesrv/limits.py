"""Limits on input, each with the failure it prevents."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest request of every call but RegisterBroker, and the most that is parsed in one step: such a step holds the
interpreter, for about 20 ms."""

MAX_REGISTRATION_BYTES = 16 * 1024 * 1024
"""Largest request of RegisterBroker: 200,000 topics with names of 70 characters. It is parsed in pieces."""

MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of a request, as HTTP/2 counts it: name, value and 32 for each entry. Metadata is in memory before
anything else of a call, and a permit is well below 8 KiB."""

SMALL_REQUEST_BYTES = 64 * 1024
"""Requests up to this size do not count as bytes under way: lookups go on while registrations are refused."""

MAX_REQUEST_BYTES_UNDER_WAY = 128 * 1024 * 1024
"""Most bytes of larger requests that are being worked on or wait for their turn: a parsed one takes the same again and
more, and 10,000 may wait."""

MAX_CONCURRENT_STREAMS = 200
"""Most open calls of one connection: each takes 12 kB. More wait at the client."""

MAX_GRPC_CONNECTIONS = 100_000
"""Most connections of gRPC; the file descriptors may allow fewer."""

MAX_CONNECTIONS_PER_SECOND = 2_000
"""Most new connections a second from one address; ten times as many in a burst. A whole fleet behind one address comes
back at once, and a flood leaves accepts to others."""

MAX_TOPICS_PER_REGISTRATION = 200_000
"""Most topics of one registration: publishing them is one step of the event loop."""

MAX_TOPICS_UNDER_WAY = 4_000_000
"""Most topics of registrations that are being read or wait for their turn, of all calls together. Each takes about 120
bytes as a record, and the same again in its request."""

MAX_FILTER_SERVERS = 64
"""Most filter servers of one broker: they travel in every route of its topics."""

MAX_LIVE_BROKERS = 50_000
"""Most live brokers: a flood of made-up brokers must not fill memory."""

MAX_CHANNELS = 50_000
"""Most open channels; each costs a task and a queue, about 30 kB."""

MAX_CHANNEL_EVENTS = 64
"""Most events that wait for the reader of one channel. One that falls further behind is cut."""

MAX_HOLDER_LENGTH = 200
"""Longest name that the holder of a channel gives itself."""

MAX_WAITING_WRITERS = 10_000
"""Most calls that wait for their turn to change the tables."""

MAX_SNAPSHOT_STREAMS = 256
"""Most snapshots streamed at once: each may hold a copy of the topic table."""

MAX_WATCHERS = 20_000
"""Most open watches and followed snapshots; each costs a task, about 30 kB."""

MAX_WATCH_TOPICS = 10_000
"""Most topics of one watch by their names. A client that needs more watches prefixes, or follows a snapshot."""

MAX_WATCH_SECONDS = 3_600.0
"""Longest time that a watch stays open. Then its reader chooses a name server anew, so that watches which left one that
restarted spread over all again. Each ends after another time, the first after three quarters of this.
"""

MAX_WATCH_PREFIXES = 32
"""Most prefixes of one watch: each is listed by ListWatchers, and a topic is compared with all of them."""

MAX_WATCHED_NAMES = 1_000_000
"""Most topics and prefixes of all watches together: each takes up to 400 bytes."""

MAX_WAITING_TOPICS = 2_000_000
"""Most changed topics that wait to be sent, of all watches together: each takes about 100 bytes. Beyond it, watches
that have many of them are ended, and beyond twice as many all others; each can continue from its last bookmark.
"""

DEFAULT_WATCHER_PAGE_SIZE = 100
"""Watchers in a page if the caller does not say."""

MAX_WATCHER_PAGE_SIZE = 400
"""Most watchers in a page: with the most and longest prefixes it stays below the 4 MiB that clients take."""

MIN_HEARTBEAT_TIMEOUT_MILLIS = 1_000
"""Shortest time a broker may ask to be given: shorter ones expire healthy brokers."""

MAX_HEARTBEAT_TIMEOUT_MILLIS = 3_600_000
"""Longest time a broker may ask to be given."""

MAX_BATCH_TOPICS = 1_000
"""Most topics of one BatchGetTopicRoutes: its lookups are of one revision, so they are one step of the event loop."""

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Largest answer to a BatchGetTopicRoutes: gRPC clients accept no more by default."""

MAX_QUEUE_DATAS_PER_TOPIC = 1_000
"""Most groups in one RegisterTopic: giving a topic its nth group copies the n before it."""

DEFAULT_PAGE_SIZE = 1_000
"""Names in a page if the caller does not say."""

MAX_PAGE_SIZE = 10_000
"""Most names in a page: with the longest names a page stays below 4 MiB."""

MAX_KV_NAME_BYTES = 255
"""Longest namespace or key of the KV configuration, in UTF-8. Names travel in errors, whose size HTTP/2 bounds."""

MAX_KV_VALUE_BYTES = 64 * 1024
"""Largest value of the KV configuration, in UTF-8: the values of a namespace travel together."""

MAX_KV_KEYS = 10_000
"""Most keys of the KV configuration: an answer to a registration carries a whole namespace, and making one of so many
keys holds up the event loop for 6 ms."""

MAX_KV_PAGE_SIZE = 2_000
"""Most entries of the KV configuration in a page: making one holds up the event loop for 4 ms."""

MAX_KV_BYTES = 2 * 1024 * 1024
"""Most bytes of all entries together, the namespace counted with each. Every change writes all of them to disk, and
a list or an answer to a registration stays below the 4 MiB that clients take."""

MAX_WAITING_OPERATOR_CHANGES = 1_000
"""Most calls that change intents, KV configuration or settings and wait until the disk has taken those before them."""

MAX_PRODUCT_ENV_NAMESRVS = 8
"""Most name servers of the product environment: they share the time of a lookup, and errors name each of them."""

PRODUCT_ENV_TIMEOUT_SECONDS = 3.0
"""How long a lookup in the product environment may take, all its name servers together (RocketMQ:
mqClientApiTimeout)."""

MAX_PRODUCT_ENV_LOOKUPS = 100
"""Most lookups in the product environment at once: a flood of unknown topics must not pile up behind a name server
that hangs. Below the calls that a connection carries at once."""

MAX_PRODUCT_ENV_ANSWER_BYTES = MAX_BATCH_BYTES
"""Largest answer of the product environment: a full batch."""

DEFAULT_AUDIT_PAGE_SIZE = 100
"""Entries of the journal in a page if the caller does not say."""

MAX_AUDIT_PAGE_SIZE = 500
"""Most entries of the journal in a page: with the longest summaries a page stays below the 4 MiB that clients take."""

MAX_JOURNAL_ENTRIES = 200_000
"""Most entries of the journal; its bytes on disk are a setting. A search that finds nothing looks at all of them."""

MAX_MEMORY_JOURNAL_BYTES = 32 * 1024 * 1024
"""Most text of a journal that no data directory holds: as many changes as the change log has, at 300 bytes each."""

MAX_WAITING_JOURNAL_CHANGES = 10_000
"""Most changes that wait to be written to the journal. A disk that hangs must not fill memory; what does not fit is
left out, and an entry says how many."""

MAX_WAITING_JOURNAL_ROWS = 500_000
"""Most rows that those changes may have together, each topic of a group counted: about 40 MB."""

MAX_WAITING_JOURNAL_READS = 100
"""Most calls that wait for entries from the disk: one after the other, a tenth of a second for the longest search."""

MAX_COMMENT_LENGTH = 500
"""Longest comment of an operator: it is kept with each intent, in the journal and in log lines."""

MAX_INTENTS = 5_000
"""Most intents that may be in force: every change writes all of them to disk, and encoding so many with the longest
comments holds the interpreter for 8 ms."""

MAX_ABSENT_INTENTS = 1_000
"""Most of these about groups that are not registered, and topics that no broker reports: names that nobody will ever
register must not take what decisions about registered brokers need."""

DEFAULT_INTENT_PAGE_SIZE = 100
"""Intents in a page if the caller does not say."""

MAX_INTENT_PAGE_SIZE = 1_000
"""Most intents in a page: with the longest comments a page stays below the 4 MiB that clients take."""

DEFAULT_PIN_LEASE_MILLIS = 600_000
"""How long a pinned snapshot is kept unless it is read, if the caller does not say: a Spark task starts, and is tried
again, within minutes."""

MIN_PIN_LEASE_MILLIS = 1_000
"""Shortest lease of a pinned snapshot."""

MAX_PIN_LEASE_MILLIS = 3_600_000
"""Longest lease of a pinned snapshot: an unused pin holds one of few places, and memory."""

MAX_GROUP_PAGE_SIZE = 2_000
"""Most groups in a page of GetBrokerClusterInfo: finding so many holds up the event loop for a few milliseconds."""

GROUP_PAGE_BYTES = 1024 * 1024
"""A page of GetBrokerClusterInfo ends after the group with which it has so many bytes, far below the 4 MiB that clients
take."""

MAX_DIGEST_PAGE_SIZE = 2_000
"""Most brokers in a page of digests. Encoding so many holds up the event loop for about a millisecond, and with the
longest names the page stays below the 4 MiB that clients take."""

MAX_EXPLANATIONS = 1_000
"""Most groups that ExplainTopicRoute tells of in one answer: with the longest texts it stays below the 4 MiB that
clients take."""

MAX_LOOKUPS_UNDER_WAY = 10_000
"""Most unary calls of RouteService and DiagnosticsService that are being worked on. Each class of calls has a bound
of its own, so that a flood of one is refused and the others go on."""

MAX_REGISTRATIONS_UNDER_WAY = 12_000
"""The same for RegistrationService: above the changes that may wait for their turn, which most of them do."""

MAX_ADMIN_CALLS_UNDER_WAY = 2_500
"""The same for AdminService: above the changes that may wait for the disk."""

MAX_STREAMS_UNDER_WAY = 75_000
"""The same for streams of any service: above all channels, watches and snapshots together, which have bounds of their
own. Each costs a task, about 30 kB."""

MAX_PROBES_UNDER_WAY = 25_000
"""The same for health. A client that checks health has a stream open for each connection."""

MAX_REFLECTIONS_UNDER_WAY = 200
"""The same for reflection, which people use. Each costs a task and a message, about 50 kB."""

MAX_CALLS_UNDER_WAY = (
    MAX_LOOKUPS_UNDER_WAY + MAX_REGISTRATIONS_UNDER_WAY + MAX_ADMIN_CALLS_UNDER_WAY + MAX_STREAMS_UNDER_WAY
)
"""The first four together. The engine counts them, and each of the last two, before Python hears of a call."""

MAX_ANSWER_BYTES_WAITING = 128 * 1024 * 1024
"""Most bytes of answers, of all connections together, that wait in the engine for readers who take nothing; over
it the connections that hold most are closed."""
