//! `RocketMQ`'s remoting protocol: frames over TCP, each with a header in JSON or in binary form.
//!
//! Python decides what a request means. This module limits and accounts for what peers send, cuts it into frames, answers from
//! the cache, and passes every other request to Python unchanged.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod incoming;
pub(crate) mod patience;
