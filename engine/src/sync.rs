//! Locks and atomics of the cache: the standard library's, or loom's where the model checker runs.

#[cfg(loom)]
pub(crate) use loom::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, Ordering},
};
