//! The engine of namesrv: sockets, TLS, gRPC and `RocketMQ`'s protocol, bounds, and a cache of answers. Python decides.
//!
//! `README.md` draws the threads and queues. Only the module `python` knows of Python (`Limits` can be read from a dict),
//! and only the event loop's thread enters it. The model checker (the feature `loom`) puts locks and atomics of its own into
//! the cache, and changes nothing else.

pub mod cache;

mod accept;
mod bridge;
mod call;
mod classes;
mod connection;
mod connections;
mod engine;
mod grpc;
mod known;
mod ledger;
mod limits;
mod notices;
mod outgoing;
mod panics;
mod peer;
#[cfg(feature = "python")]
mod python;
mod remoting;
mod scheduler;
mod shared;
mod wire;
mod worker;

pub use accept::proxy::Network;
pub use accept::{Door, TlsMode};
pub use bridge::{CallId, CallInfo, Cause, Command, Event, HeldMessage, Notice};
pub use engine::{EVENTS_PER_TURN, Engine, Setup};
pub use grpc::status::{Explanation, Statuses, trailers as status_trailers};
pub use ledger::Kind;
pub use limits::Limits;
pub use panics::tell_panics_in_lines;
pub use peer::Peer;
pub use remoting::answer::{FrameAnswer, GoAway};
pub use shared::{Method, Requests};
