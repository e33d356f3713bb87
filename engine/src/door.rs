//! What a listener lets in.

/// What is spoken at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// gRPC, over TLS once there are certificates.
    Grpc,
    /// `RocketMQ`'s protocol.
    Remoting(TlsMode),
}

/// Whether `RocketMQ`'s protocol is spoken over TLS (`RocketMQ`: `TlsMode`). The first byte of a connection tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Disabled,
    /// If the client wants it.
    Permissive,
    /// Always.
    Enforcing,
}
