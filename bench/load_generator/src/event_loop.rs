//! An event loop of one thread, for tasks that never leave it.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, LocalOptions};

/// Runs something, and what it spawns, on an event loop of this thread alone.
pub fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let event_loop = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    event_loop.block_on(future)
}
