//! Answers of one kind, bounded in bytes. When it is full, those that are asked for get a second chance, and of new ones
//! few come in.
//!
//! Clients ask for their routes again and again, in the same order. If these are a little more than the cache can hold
//! and each were added, each would be dropped before its next request, and nothing would be found. So most new answers are
//! not added, and those in the cache stay. An answer that is requested often is added soon.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::Answer;
use super::dependencies::{Dependencies, Index};
use super::locks::atomic::{AtomicBool, Ordering};

/// What an entry takes beyond its key, answer and dependencies: two pointers to the key, the entry, and its slot in the map.
const OVERHEAD: usize = 192;

/// What a dependency of an entry takes, as if no other entry had it: its index in the entry, and its generation.
const DEPENDENCY_SIZE: usize = 64;

/// How many answers may get a second chance in a row: eviction must not walk through all of them.
const MAX_CHANCES: usize = 32;

/// Of so many new answers one is added, by chance, when it is full. With routes for five fourths of its size, three of four
/// are found then.
const NEW_ONES: u64 = 8;

/// An answer with its dependencies.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) answer: Answer,
    pub(super) dependencies: Box<[Index]>,
    pub(super) generation: u64,
    size: usize,
    used: AtomicBool,
}

impl Entry {
    pub(super) fn new(answer: Answer, dependencies: Box<[Index]>, generation: u64) -> Self {
        Self { answer, dependencies, generation, size: 0, used: AtomicBool::new(false) }
    }

    pub(super) fn mark_used(&self) {
        // Reads first: a line that many threads write is slow for all of them.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(super) struct Share {
    most: usize,
    pub(super) bytes: usize,
    pub(super) entries: HashMap<Arc<[u8]>, Entry>,
    order: VecDeque<Arc<[u8]>>,
    /// The last random number.
    random: u64,
}

impl Share {
    pub(super) fn new(most: usize) -> Self {
        let random = RandomState::new().hash_one(most) | 1;
        Self { most, bytes: 0, entries: HashMap::new(), order: VecDeque::new(), random }
    }

    /// Keeps an entry that has its dependencies already, and returns whether it fit. They are given back with it.
    pub(super) fn put(&mut self, key: &[u8], answer_size: usize, mut entry: Entry, all: &mut Dependencies) -> bool {
        entry.size = OVERHEAD + 2 * key.len() + answer_size + DEPENDENCY_SIZE * entry.dependencies.len();
        if entry.size > self.most / 4 {
            all.give_back(&entry.dependencies);
            self.remove(key, all);
            return false;
        }
        if let Some(held) = self.entries.get_mut(key) {
            self.bytes = self.bytes - held.size + entry.size;
            all.give_back(&held.dependencies);
            *held = entry;
        } else if self.bytes + entry.size > self.most && self.next_random() % NEW_ONES != 0 {
            all.give_back(&entry.dependencies);
            return false;
        } else {
            let key: Arc<[u8]> = key.into();
            self.bytes += entry.size;
            self.entries.insert(Arc::clone(&key), entry);
            self.order.push_back(key);
            if self.order.len() > 2 * self.entries.len() + MAX_CHANCES {
                self.order = self.entries.keys().cloned().collect();
            }
        }
        self.make_room(all);
        true
    }

    /// Takes an answer out. Its key stays in the order until it is first.
    pub(super) fn remove(&mut self, key: &[u8], all: &mut Dependencies) {
        if let Some(held) = self.entries.remove(key) {
            self.bytes -= held.size;
            all.give_back(&held.dependencies);
        }
    }

    fn next_random(&mut self) -> u64 {
        // Marsaglia's xorshift: it is never zero. Nothing depends on how good it is.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn make_room(&mut self, all: &mut Dependencies) {
        let mut chances = MAX_CHANCES;
        while self.bytes > self.most {
            let Some(key) = self.order.pop_front() else { return };
            let Some(entry) = self.entries.get(&key) else { continue };
            if chances > 0 && entry.used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                self.order.push_back(key);
                continue;
            }
            self.remove(&key, all);
        }
    }
}
