//! gRPC on the wire: messages in and out, what was compressed, and how a call ends. Knows nothing of connections.

pub(crate) mod inflate;
pub(crate) mod message;
pub(crate) mod payload;
#[cfg(any(feature = "python", test))]
pub(crate) mod pieces;
pub(crate) mod status;
