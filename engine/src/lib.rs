//! The gRPC engine of namesrv: sockets, TLS, HTTP/2, gRPC's framing, bounds, and a cache of answers. Python decides.
//!
//! `README.md` draws the threads and queues. Only the module `python` knows of Python, and only the event loop's
//! thread enters it. Where the model checker runs (`--cfg loom`), there is the cache alone.

pub mod cache;
mod sync;

#[cfg(not(loom))]
mod bridge;
#[cfg(not(loom))]
mod budget;
#[cfg(not(loom))]
mod call;
#[cfg(not(loom))]
mod classes;
#[cfg(not(loom))]
mod connection;
#[cfg(not(loom))]
mod crossing;
#[cfg(not(loom))]
mod door;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod inflate;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod notices;
#[cfg(not(loom))]
mod pace;
#[cfg(not(loom))]
mod payload;
#[cfg(not(loom))]
mod peer;
#[cfg(all(feature = "python", not(loom)))]
mod python;
#[cfg(not(loom))]
mod rates;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod responder;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod scan;
#[cfg(not(loom))]
mod script;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod tls;
#[cfg(not(loom))]
mod wire;

#[cfg(not(loom))]
pub use bridge::{CallId, CallInfo, Command, Event};
#[cfg(not(loom))]
pub use engine::{EVENTS_PER_TURN, Engine, Overloaded, Setup, status_trailers};
#[cfg(not(loom))]
pub use limits::Limits;
#[cfg(not(loom))]
pub use peer::Peer;
#[cfg(not(loom))]
pub use shared::Method;
