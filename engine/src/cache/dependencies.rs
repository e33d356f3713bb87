//! When each dependency was last touched: exactly for those that a cached answer has, roughly for all others.
//!
//! A change of ten thousand topics must leave answers alone that depend on none of them. So each dependency of a cached answer
//! has an index of its own, until its last answer goes. Other dependencies share the entries of a small table. That table judges
//! only an answer that was computed before a change and comes after it: one that shares an entry with a changed dependency is
//! not kept.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Entries of the rough table.
const ROUGH: usize = if cfg!(feature = "loom") { 4 } else { 1 << 16 };

/// A dependency as a keyed hash: without the key, a peer cannot choose one that collides with another.
pub(super) type Name = u64;

/// The index of a dependency that cached answers have.
pub(super) type Index = u32;

#[derive(Debug)]
struct Held {
    name: Name,
    generation: u64,
    answers: u32,
}

#[derive(Debug)]
pub(super) struct Dependencies {
    /// Dependencies that answers have.
    pub(super) by_name: HashMap<Name, Index, BuildHasherDefault<Hashed>>,
    held: Vec<Held>,
    free: Vec<Index>,
    rough: Box<[u64]>,
}

impl Dependencies {
    pub(super) fn new() -> Self {
        Self {
            by_name: HashMap::default(),
            held: Vec::new(),
            free: Vec::new(),
            rough: vec![0; ROUGH].into_boxed_slice(),
        }
    }

    /// A change touches a dependency.
    pub(super) fn touch(&mut self, name: Name, generation: u64) {
        self.rough[rough_entry(name)] = generation;
        if let Some(index) = self.by_name.get(&name) {
            self.held[*index as usize].generation = generation;
        }
    }

    /// Whether a dependency may have been touched after a generation.
    pub(super) fn may_be_younger(&self, name: Name, generation: u64) -> bool {
        self.rough[rough_entry(name)] > generation
    }

    /// The generation that last touched a dependency while an answer had it.
    pub(super) fn generation(&self, index: Index) -> u64 {
        self.held[index as usize].generation
    }

    /// One more answer has a dependency.
    pub(super) fn hold(&mut self, name: Name) -> Index {
        let index = *self.by_name.entry(name).or_insert_with(|| {
            let held = Held { name, generation: 0, answers: 0 };
            if let Some(index) = self.free.pop() {
                self.held[index as usize] = held;
                return index;
            }
            self.held.push(held);
            Index::try_from(self.held.len() - 1).expect("the cache is full long before four billion dependencies")
        });
        self.held[index as usize].answers += 1;
        index
    }

    /// An answer goes that had these dependencies.
    pub(super) fn give_back(&mut self, indexes: &[Index]) {
        for index in indexes {
            let held = &mut self.held[*index as usize];
            held.answers -= 1;
            if held.answers == 0 {
                self.by_name.remove(&held.name);
                self.free.push(*index);
            }
        }
    }
}

fn rough_entry(name: Name) -> usize {
    usize::try_from(name & (ROUGH as u64 - 1)).unwrap_or_default()
}

/// The names are hashes already.
#[derive(Debug, Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("names are 64-bit numbers");
    }
}
