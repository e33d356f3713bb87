//! Answers that were given before, for as long as they are true.
//!
//! Every answer begins with a header that carries the current revision, so the cache keeps only what follows (the
//! *tail*) and one header for all. An answer has *dependencies*: its topic and each broker group in it. A change names
//! dependencies; an answer that depends on one of them is stale from then on.
//!
//! Each change has a number, the *generation*. A dependency of a cached answer remembers the generation that last touched it; an
//! answer remembers the generation at which it was computed. It is good while none of its dependencies is younger. An answer that
//! was computed before a change of its dependencies and comes after it is not kept.

mod dependencies;
mod share;

use std::hash::{BuildHasher, RandomState};
#[cfg(not(feature = "loom"))]
use std::sync as locks;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
#[cfg(feature = "loom")]
use loom::sync as locks; // the model checker's

use crate::remoting::answer::FrameAnswer;
use dependencies::{Dependencies, Name};
use locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use share::{Entry, Share};

/// Longest key, bytes: requests above it are rare, and asked for once.
const MAX_KEY: usize = 16 << 10;

/// A key is longer than its answer by this much at most. Otherwise few requests would push out many answers.
const PLAIN_KEY: usize = 1 << 10;

/// Most dependencies of one answer.
const MAX_DEPENDENCIES: usize = 8_192;

/// One byte in this many is for answers that something does not exist: a flood of invented names fills no more.
const NEGATIVE_SHARE_DIVISOR: usize = 8;

/// What is answered.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A message: what follows its header.
    Message(Bytes),
    /// The trailers of the status that something does not exist.
    Absence(Arc<HeaderMap>),
    /// A frame of `RocketMQ`'s protocol.
    Frame(FrameAnswer),
}

impl Answer {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Message(tail) => tail.len(),
            Self::Absence(trailers) => {
                trailers.iter().map(|(name, value)| 64 + name.as_str().len() + value.len()).sum()
            }
            Self::Frame(frame) => frame.size(),
        }
    }

    /// Whether it says that something does not exist.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::Message(_) => false,
            Self::Absence(_) => true,
            Self::Frame(frame) => frame.is_absence,
        }
    }
}

/// A hit: the header in force, and the answer.
#[derive(Debug)]
pub struct Hit {
    /// What a message begins with.
    pub header: Bytes,
    /// What follows it.
    pub answer: Answer,
}

/// Builds the key of a request in a buffer that is used again.
pub fn key_into(key: &mut Vec<u8>, class: u32, method: u16, request: &[u8]) {
    key.clear();
    key.extend_from_slice(&class.to_le_bytes());
    key.extend_from_slice(&method.to_le_bytes());
    key.extend_from_slice(request);
}

/// The cache. Found in from any thread; filled and changed by the one that owns the tables.
#[derive(Debug)]
pub struct Cache {
    secret: RandomState,
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    header: Bytes,
    generation: u64,
    /// The generation of the last `clear`: answers that were computed before it are stale.
    cleared: u64,
    dependencies: Dependencies,
    found: Share,
    absent: Share,
}

impl Cache {
    /// An empty cache that takes so many bytes at most.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            secret: RandomState::new(),
            inner: RwLock::new(Inner {
                header: Bytes::new(),
                generation: 0,
                cleared: 0,
                dependencies: Dependencies::new(),
                found: Share::new(bytes - bytes / NEGATIVE_SHARE_DIVISOR),
                absent: Share::new(bytes / NEGATIVE_SHARE_DIVISOR),
            }),
        }
    }

    /// The answer to a key, if it is true now.
    pub fn find(&self, key: &[u8]) -> Option<Hit> {
        let inner = self.read();
        let entry = inner.found.entries.get(key).or_else(|| inner.absent.entries.get(key))?;
        let good = inner.cleared <= entry.generation
            && entry.dependencies.iter().all(|index| inner.dependencies.generation(*index) <= entry.generation);
        good.then(|| {
            entry.mark_used();
            Hit { header: inner.header.clone(), answer: entry.answer.clone() }
        })
    }

    /// Keeps an answer that was computed at a generation, and returns whether it fit.
    pub fn put<T: AsRef<[u8]>>(
        &self,
        key: &[u8],
        answer: Answer,
        dependencies: impl IntoIterator<Item = T>,
        generation: u64,
    ) -> bool {
        let names: Vec<Name> = dependencies.into_iter().map(|dependency| self.name(dependency.as_ref())).collect();
        let size = answer.size();
        if key.len() > MAX_KEY.min(PLAIN_KEY + size) || names.len() > MAX_DEPENDENCIES {
            return false;
        }
        let absent = answer.is_absence();
        let mut inner = self.write();
        let inner = &mut *inner;
        if inner.cleared > generation || names.iter().any(|name| inner.dependencies.may_be_younger(*name, generation)) {
            return false;
        }
        let (share, other) =
            if absent { (&mut inner.absent, &mut inner.found) } else { (&mut inner.found, &mut inner.absent) };
        other.remove(key, &mut inner.dependencies);
        let indexes = names.iter().map(|name| inner.dependencies.hold(*name)).collect();
        share.put(key, size, Entry::new(answer, indexes, generation), &mut inner.dependencies)
    }

    /// Makes answers stale that have one of the dependencies, and has all that follow carry the header. Returns the generation.
    ///
    /// This is the moment of a change as anybody outside sees it.
    pub fn change<T: AsRef<[u8]>>(&self, dependencies: impl IntoIterator<Item = T>, header: Option<Bytes>) -> u64 {
        let names: Vec<Name> = dependencies.into_iter().map(|dependency| self.name(dependency.as_ref())).collect();
        let mut inner = self.write();
        inner.generation += 1;
        let generation = inner.generation;
        for name in names {
            inner.dependencies.touch(name, generation);
        }
        if let Some(header) = header {
            inner.header = header;
        }
        generation
    }

    /// Makes every answer stale, those included that are being computed. Returns the generation. It frees nothing: later
    /// answers replace stale ones.
    pub fn clear(&self) -> u64 {
        let mut inner = self.write();
        inner.generation += 1;
        inner.cleared = inner.generation;
        inner.generation
    }

    /// Bytes that the answers take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inner = self.read();
        inner.found.bytes + inner.absent.bytes
    }

    /// How many answers there are, stale ones included.
    #[must_use]
    pub fn answers(&self) -> usize {
        let inner = self.read();
        inner.found.entries.len() + inner.absent.entries.len()
    }

    fn name(&self, dependency: &[u8]) -> Name {
        self.secret.hash_one(dependency)
    }

    // A thread that panicked left the tables whole: every change to them is one assignment or one map operation.
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;

#[cfg(all(test, feature = "loom"))]
mod model;
