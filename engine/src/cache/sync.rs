//! Locks and atomics of the cache: the standard library's, or loom's where the model checker runs.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, Ordering},
};
