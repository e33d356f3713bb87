//! The cache during a change, in every order that threads can take: `cargo test --no-default-features --features loom --lib cache`.

use bytes::Bytes;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Answer, Cache};

fn revision(bytes: &Bytes) -> u64 {
    u64::from(bytes[0])
}

fn tail(number: u8) -> Answer {
    Answer::Message(Bytes::copy_from_slice(&[number]))
}

/// The tables are at revision 1; a change makes revision 2 of them, which touches the one topic there is.
fn filled() -> Arc<Cache> {
    let cache = Cache::new(1 << 12);
    let generation = cache.change(["t"], Some(Bytes::from_static(&[1])));
    cache.put(b"k", tail(1), ["t"], generation);
    Arc::new(cache)
}

#[test]
fn whoever_was_told_of_a_revision_never_finds_an_older_route() {
    loom::model(|| {
        let cache = filled();
        let told = Arc::new(AtomicU64::new(1));
        let owner = {
            let (cache, told) = (Arc::clone(&cache), Arc::clone(&told));
            thread::spawn(move || {
                let generation = cache.change(["t"], Some(Bytes::from_static(&[2])));
                told.store(2, Ordering::Release);
                cache.put(b"k", tail(2), ["t"], generation);
            })
        };
        let known = told.load(Ordering::Acquire);
        if let Some(hit) = cache.find(b"k") {
            let Answer::Message(tail) = hit.answer else { unreachable!() };
            assert_eq!(revision(&hit.header), revision(&tail), "header and route of different revisions");
            assert!(revision(&tail) >= known, "an older route than a revision that was told");
        }
        owner.join().expect("the owner ends");
    });
}

#[test]
fn two_lookups_one_after_the_other_never_go_back() {
    loom::model(|| {
        let cache = filled();
        let owner = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                let generation = cache.change(["t"], Some(Bytes::from_static(&[2])));
                cache.put(b"k", tail(2), ["t"], generation);
            })
        };
        let seen = [cache.find(b"k"), cache.find(b"k")].map(|hit| hit.map_or(0, |hit| revision(&hit.header)));
        assert!(seen[1] == 0 || seen[0] <= seen[1]);
        owner.join().expect("the owner ends");
    });
}

#[test]
fn a_fill_that_was_computed_before_a_change_is_never_found_after_it() {
    loom::model(|| {
        let cache = Arc::new(Cache::new(1 << 12));
        let before = cache.change(["t"], Some(Bytes::from_static(&[1])));
        let late = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.put(b"k", tail(1), ["t"], before))
        };
        cache.change(["t"], Some(Bytes::from_static(&[2])));
        assert!(cache.find(b"k").is_none(), "a route of revision 1 under the header of revision 2");
        late.join().expect("the fill ends");
        assert!(cache.find(b"k").is_none());
    });
}
