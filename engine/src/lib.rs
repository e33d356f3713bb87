//! The gRPC engine of namesrv: sockets, TLS, HTTP/2, gRPC's framing, bounds, and a cache of answers. Python decides.
//!
//! `README.md` draws the threads and queues. Only the module `python` knows of Python, and only the event loop's
//! thread enters it. Where the model checker runs (the feature `loom`), there is the cache alone.

pub mod cache;
mod sync;

#[cfg(not(feature = "loom"))]
mod bridge;
#[cfg(not(feature = "loom"))]
mod budget;
#[cfg(not(feature = "loom"))]
mod call;
#[cfg(not(feature = "loom"))]
mod classes;
#[cfg(not(feature = "loom"))]
mod connection;
#[cfg(not(feature = "loom"))]
mod crossing;
#[cfg(not(feature = "loom"))]
mod door;
#[cfg(not(feature = "loom"))]
mod engine;
#[cfg(not(feature = "loom"))]
mod inflate;
#[cfg(not(feature = "loom"))]
mod known;
#[cfg(not(feature = "loom"))]
mod limits;
#[cfg(not(feature = "loom"))]
mod message;
#[cfg(not(feature = "loom"))]
mod mistakes;
#[cfg(not(feature = "loom"))]
mod notices;
#[cfg(not(feature = "loom"))]
mod pace;
#[cfg(not(feature = "loom"))]
mod parked;
#[cfg(not(feature = "loom"))]
mod payload;
#[cfg(not(feature = "loom"))]
mod peer;
#[cfg(not(feature = "loom"))]
mod places;
#[cfg(all(feature = "python", not(feature = "loom")))]
mod python;
#[cfg(not(feature = "loom"))]
mod rates;
#[cfg(not(feature = "loom"))]
mod request;
#[cfg(not(feature = "loom"))]
mod responder;
#[cfg(not(feature = "loom"))]
mod room;
#[cfg(not(feature = "loom"))]
mod scan;
#[cfg(not(feature = "loom"))]
mod script;
#[cfg(not(feature = "loom"))]
mod shared;
#[cfg(not(feature = "loom"))]
mod status;
#[cfg(not(feature = "loom"))]
mod tls;
#[cfg(not(feature = "loom"))]
mod wire;

#[cfg(not(feature = "loom"))]
pub use bridge::{CallId, CallInfo, Command, Event};
#[cfg(not(feature = "loom"))]
pub use engine::{EVENTS_PER_TURN, Engine, Overloaded, Setup, status_trailers};
#[cfg(not(feature = "loom"))]
pub use limits::Limits;
#[cfg(not(feature = "loom"))]
pub use notices::Notice;
#[cfg(not(feature = "loom"))]
pub use peer::Peer;
#[cfg(not(feature = "loom"))]
pub use shared::Method;
