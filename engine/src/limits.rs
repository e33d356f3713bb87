//! The bounds of the engine, each with the failure that it prevents.

use std::time::Duration;

/// Bounds that the settings of the name server give.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes that the cache of answers may take, what it needs for itself included.
    pub cache_bytes: usize,
    /// Largest message of a request, bytes. Checked before anything of it is kept.
    pub max_message: usize,
    /// Largest metadata of a request as HTTP/2 counts it: name, value and 32 for each entry.
    pub max_metadata: usize,
    /// Calls open at once on one connection; a client keeps more to itself.
    pub max_streams: u32,
    /// Connections open at once; those above are closed at once.
    pub max_connections: usize,
    /// Connections open at once of one address other than this machine's own; those above are closed at once.
    pub max_site_connections: usize,
    /// Of the connections, those that only programs of this machine may have.
    pub kept_connections: usize,
    /// Calls that Python has, or that wait for it, at once; more are refused.
    pub max_pending: usize,
    /// Bytes of all messages together that are still coming in.
    pub max_assembling: usize,
    /// Bytes of all answers together that wait for their readers. Over it, connections that hold most are closed.
    pub max_waiting: usize,
    /// Calls that Python has and the client cancels, on one connection within one keepalive time.
    pub max_cancels: u32,
    /// New connections a second from one address; ten times as many may come in a burst.
    pub max_connection_rate: u32,
    /// A connection that is silent for so long is pinged.
    pub keepalive: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How long TLS and the preface of HTTP/2 may take, each.
    pub handshake_timeout: Duration,
    /// How long a message may take from its first byte to its last.
    pub body_timeout: Duration,
    /// How long the last message of a stream that has ended may wait for its reader.
    pub linger: Duration,
    /// Age at which a connection is told to go, unless it carries a stream that is worth more; zero: never.
    pub max_connection_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            max_message: 4 << 20,
            max_metadata: 16 << 10,
            max_streams: 200,
            max_connections: 20_000,
            max_site_connections: 10_000,
            kept_connections: 4_000,
            max_pending: 100_000,
            max_assembling: 128 << 20,
            max_waiting: 128 << 20,
            max_cancels: 400,
            max_connection_rate: 2_000,
            keepalive: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            linger: Duration::from_secs(5),
            max_connection_age: Duration::ZERO,
        }
    }
}
