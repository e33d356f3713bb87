//! What the cache promises, on one thread.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use proptest::prelude::*;

use super::{Answer, Cache, Hit, key_into};

const NONE: [&[u8]; 0] = [];

fn message(text: &str) -> Answer {
    Answer::Message(Bytes::copy_from_slice(text.as_bytes()))
}

fn absence() -> Answer {
    Answer::Absence(Arc::new(HeaderMap::new()))
}

fn tail(hit: Option<Hit>) -> Option<String> {
    match hit?.answer {
        Answer::Message(tail) => Some(String::from_utf8_lossy(&tail).into_owned()),
        Answer::Absence(_) => Some("absence".into()),
        Answer::Frame(_) => None,
    }
}

#[test]
fn the_header_is_that_of_the_last_change_and_not_of_the_fill() {
    let cache = Cache::new(1 << 20);
    cache.change(NONE, Some(Bytes::from_static(b"r1")));
    cache.put(b"k", message("route"), ["TopicA"], 1);
    cache.change(["TopicB"], Some(Bytes::from_static(b"r2")));
    assert_eq!(cache.find(b"k").map(|hit| hit.header), Some(Bytes::from_static(b"r2")));
}

#[test]
fn a_change_of_ten_thousand_topics_leaves_answers_alone_that_depend_on_none_of_them() {
    let cache = Cache::new(64 << 20);
    let keys: Vec<String> = (0..5_000).map(|number| format!("key-{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let dependencies = [format!("topic-{number}"), format!("group-{}", number % 100)];
        assert!(cache.put(key.as_bytes(), message("route"), dependencies, 0));
    }
    cache.change((0..10_000).map(|number| format!("changed-{number}")), None);
    let stale = keys.iter().filter(|key| cache.find(key.as_bytes()).is_none()).count();
    assert_eq!(stale, 0);
}

#[test]
fn a_dependency_takes_a_place_only_while_an_answer_has_it() {
    let cache = Cache::new(1 << 16);
    for number in 0..10_000 {
        let dependencies = [format!("topic-{number}"), "group".to_owned()];
        cache.put(format!("key-{number}").as_bytes(), message("route"), dependencies, 0);
        let held = cache.read().dependencies.by_name.len();
        assert!(held <= cache.answers() + 1, "{held} dependencies of {} answers", cache.answers());
    }
    cache.put(b"key", message("old"), ["a", "b", "a"], 0);
    cache.put(b"key", message("new"), ["c"], 0);
    assert!(cache.read().dependencies.by_name.len() <= cache.answers() + 1);
}

#[test]
fn an_answer_that_comes_late_is_kept_unless_what_it_depends_on_has_changed() {
    let cache = Cache::new(1 << 20);
    let before = cache.change(NONE, None);
    cache.change(["TopicB"], None);
    assert!(!cache.put(b"b", message("old"), ["TopicB"], before));
    assert!(cache.put(b"a", message("route"), ["TopicA"], before));
    assert_eq!(tail(cache.find(b"a")).as_deref(), Some("route"));
}

#[test]
fn an_absence_takes_the_place_of_an_answer_and_the_reverse() {
    let cache = Cache::new(1 << 20);
    cache.put(b"k", message("route"), ["TopicA"], 0);
    cache.put(b"k", absence(), ["TopicA"], 0);
    assert_eq!(tail(cache.find(b"k")).as_deref(), Some("absence"));
    cache.put(b"k", message("route"), ["TopicA"], 0);
    assert_eq!(tail(cache.find(b"k")).as_deref(), Some("route"));
    assert_eq!(cache.answers(), 1);
}

#[test]
fn a_flood_of_absences_leaves_the_answers_alone() {
    let cache = Cache::new(64 << 10);
    cache.put(b"route", message("route"), ["TopicA"], 0);
    for number in 0..10_000_u32 {
        cache.put(&number.to_le_bytes(), absence(), [number.to_le_bytes()], 0);
    }
    assert_eq!(tail(cache.find(b"route")).as_deref(), Some("route"));
    assert!(cache.bytes() <= 64 << 10);
}

#[test]
fn an_answer_that_is_asked_for_outlives_those_that_are_not() {
    let cache = Cache::new(64 << 10);
    cache.put(b"asked for", message("route"), NONE, 0);
    for number in 0..10_000_u32 {
        assert!(cache.find(b"asked for").is_some());
        cache.put(&number.to_le_bytes(), message("other"), NONE, 0);
    }
    assert!(cache.find(b"asked for").is_some());
}

#[test]
fn routes_that_are_asked_for_in_turn_are_found_where_they_are_more_than_there_is_room_for() {
    const ROUTES: usize = 5_000;
    let one = 192 + 2 * size_of::<usize>() + "route".len();
    let cache = Cache::new(4 * one * ROUTES / 5 * 8 / 7);
    let mut found = [0; 4];
    for count in &mut found {
        for number in 0..ROUTES {
            let key = number.to_le_bytes();
            if cache.find(&key).is_some() {
                *count += 1;
            } else {
                cache.put(&key, message("route"), NONE, 0);
            }
        }
    }
    assert_eq!(found[0], 0);
    assert!(found[1..].iter().all(|count| (ROUTES * 3 / 5..=ROUTES * 4 / 5).contains(count)), "{found:?}");
}

#[test]
fn an_answer_that_is_asked_for_often_comes_in_where_there_is_no_room() {
    let cache = Cache::new(64 << 10);
    for number in 0..10_000_u32 {
        cache.put(&number.to_le_bytes(), message("other"), NONE, 0);
    }
    let asked = (0..1_000).find(|_| {
        cache.put(b"asked for", message("route"), NONE, 0);
        cache.find(b"asked for").is_some()
    });
    assert!(asked.is_some());
}

#[test]
fn what_is_too_large_is_not_kept_and_takes_its_forerunner_along() {
    let cache = Cache::new(64 << 10);
    cache.put(b"k", message("small"), NONE, 0);
    assert!(!cache.put(b"k", Answer::Message(Bytes::from(vec![0; 60 << 10])), NONE, 0));
    assert!(cache.find(b"k").is_none());
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn a_long_key_is_kept_for_a_long_answer_alone() {
    let cache = Cache::new(1 << 20);
    let long = [7; 2_000];
    assert!(!cache.put(&long, message("short"), NONE, 0));
    assert!(cache.put(&long[..1_000], message("short"), NONE, 0));
    assert!(cache.put(&long, message(&"long".repeat(500)), NONE, 0));
}

#[test]
fn keys_of_other_classes_and_methods_are_other_keys() {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    key_into(&mut one, 1, 2, b"x");
    key_into(&mut other, 2, 1, b"x");
    assert_ne!(one, other);
}

proptest! {
    #[test]
    fn bytes_never_exceed_the_bound(sizes in proptest::collection::vec((0_u8..20, 0_usize..4_000), 1..300)) {
        let cache = Cache::new(32 << 10);
        for (key, size) in sizes {
            cache.put(&[key], Answer::Message(Bytes::from(vec![0; size])), [[key]], 0);
            prop_assert!(cache.bytes() <= 32 << 10);
        }
    }

    #[test]
    fn what_is_found_is_what_a_plain_table_holds(steps in proptest::collection::vec((0_u8..6, 0_u8..6), 1..200)) {
        // Topic t rests on itself and on group t % 2. Its answer is how often either has changed.
        let cache = Cache::new(1 << 20);
        let (mut topics, mut groups, mut generation) = ([0_u32; 6], [0_u32; 2], 0);
        let (mut cleared, mut kept) = (0, [0; 6]);
        let (mut computed, mut expected) = ([const { None }; 6], [const { None }; 6]);
        for (what, topic) in steps {
            let at = usize::from(topic);
            let truth = format!("{} {}", topics[at], groups[at % 2]);
            match what {
                0 => { topics[at] += 1; generation = cache.change([[topic]], None); expected[at] = None; }
                1 => {
                    groups[at % 2] += 1;
                    generation = cache.change([[100 + topic % 2]], None);
                    for other in (at % 2..6).step_by(2) { expected[other] = None; }
                }
                2 => { generation = cache.clear(); cleared = generation; expected = [const { None }; 6]; }
                3 => computed[at] = Some((truth, generation)),
                4 => if let Some((answer, of)) = computed[at].take() {
                    if cache.put(&[topic], message(&answer), [[topic], [100 + topic % 2]], of) { kept[at] = of; }
                    if of == generation { expected[at] = Some(answer); }
                }
                _ => {
                    let found = tail(cache.find(&[topic]));
                    prop_assert!(found.is_some() || expected[at].is_none());
                    prop_assert!(found.is_none() || kept[at] >= cleared);
                    prop_assert!(found.is_none_or(|found| found == truth));
                }
            }
        }
    }
}
