//! Answers of one kind, bounded in bytes; those that are asked for get a second chance when it is full.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Answer;
use super::sync::{AtomicBool, Ordering};

/// What an entry takes beyond its key, answer and slots: two pointers to the key, the entry, and its place in the map.
const OVERHEAD: usize = 192;

/// How many answers may get a second chance in a row: making room must not walk through all of them.
const MAX_CHANCES: usize = 32;

/// An answer with what it rests on.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) answer: Answer,
    pub(super) slots: Box<[u16]>,
    pub(super) generation: u64,
    size: usize,
    used: AtomicBool,
}

impl Entry {
    pub(super) fn new(answer: Answer, slots: Box<[u16]>, generation: u64) -> Self {
        Self { answer, slots, generation, size: 0, used: AtomicBool::new(false) }
    }

    pub(super) fn mark_used(&self) {
        // Reads first: a line that many threads write is slow for all of them.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Answers by their keys.
#[derive(Debug)]
pub(super) struct Share {
    most: usize,
    bytes: usize,
    entries: HashMap<Arc<[u8]>, Entry>,
    order: VecDeque<Arc<[u8]>>,
}

impl Share {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: 0, entries: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn put(&mut self, key: &[u8], answer_size: usize, mut entry: Entry) -> bool {
        entry.size = OVERHEAD + 2 * key.len() + answer_size + 2 * entry.slots.len();
        if entry.size > self.most / 4 {
            self.remove(key);
            return false;
        }
        if let Some(held) = self.entries.get_mut(key) {
            self.bytes = self.bytes - held.size + entry.size;
            *held = entry;
        } else {
            let key: Arc<[u8]> = key.into();
            self.bytes += entry.size;
            self.entries.insert(Arc::clone(&key), entry);
            self.order.push_back(key);
            if self.order.len() > 2 * self.entries.len() + MAX_CHANCES {
                self.order = self.entries.keys().cloned().collect();
            }
        }
        self.make_room();
        true
    }

    /// Takes an answer out. Its key stays in the order until its turn comes.
    pub(super) fn remove(&mut self, key: &[u8]) {
        if let Some(held) = self.entries.remove(key) {
            self.bytes -= held.size;
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries = HashMap::new();
        self.order = VecDeque::new();
        self.bytes = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn make_room(&mut self) {
        let mut chances = MAX_CHANCES;
        while self.bytes > self.most {
            let Some(key) = self.order.pop_front() else { return };
            let Some(entry) = self.entries.get(&key) else { continue };
            if chances > 0 && entry.used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                self.order.push_back(key);
                continue;
            }
            self.bytes -= entry.size;
            self.entries.remove(&key);
        }
    }
}
