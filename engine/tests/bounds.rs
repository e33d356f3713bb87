//! The bounds of the engine, each at its value and one past it, as a client meets them.
#![cfg(not(feature = "loom"))]

mod harness;

use std::time::{Duration, Instant};

use harness::raw::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, PING,
    REFUSED_STREAM, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, block, field, foreign, frame,
};
use harness::{KEPT, SLOW, Served, call};
use namesrv_engine::Limits;

/// What `Slow` is asked.
const ASKED: &[u8] = b"\0\0\0\0\x05never";

/// The code in the GOAWAY of a connection that ended; None if it ended without one.
fn farewell(frames: &[Frame]) -> Option<u32> {
    frames.iter().rfind(|frame| frame.kind == GOAWAY).map(Frame::code)
}

/// Whether a connection is still served: it answers a ping.
async fn lives(raw: &mut Raw) -> bool {
    raw.send(PING, 0, 0, b"a ping!!").await;
    while let Some(frame) = raw.next().await {
        if frame.kind == PING && frame.flags & ACK != 0 {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_call_that_crosses_the_farewell_costs_no_other_call() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    raw.call(1, SLOW, ASKED, "300m").await;
    served.until("calls_under_way", 1).await;
    served.engine.stop(1);
    let asked = raw.until(|frame| frame.kind == PING && frame.flags & ACK == 0).await;
    raw.send(PING, ACK, 0, &asked.payload).await;
    raw.call(3, SLOW, ASKED, "300m").await;
    raw.send(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 9]).await;
    let frames = raw.rest().await;
    assert_eq!(farewell(&frames), Some(0));
    assert!(frames.iter().any(|frame| frame.kind == HEADERS && frame.stream == 1), "the first call has its answer");
}

#[tokio::test]
async fn a_connection_carries_so_many_calls_and_one_more_is_refused() {
    let served = Served::with(Limits { max_streams: 2, ..Limits::default() });
    let mut raw = Raw::connect(served.address).await;
    raw.until(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0).await;
    raw.send(SETTINGS, ACK, 0, &[]).await;
    for stream in [1, 3, 5] {
        raw.call(stream, SLOW, ASKED, "1S").await;
    }
    let refused = raw.until(|frame| frame.kind == RST_STREAM).await;
    assert_eq!((refused.stream, refused.code()), (5, REFUSED_STREAM));
    let answered = raw.until(|frame| frame.kind == HEADERS).await;
    assert_eq!(answered.stream, 1, "the others go on to their own end");
}

#[tokio::test]
async fn so_many_calls_may_be_cancelled_and_one_more_ends_the_connection() {
    let served = Served::with(Limits { max_cancels: 5, ..Limits::default() });
    let (call, foreign, half) = (block(SLOW, "5S"), foreign(), &ASKED[..7]);
    let requests = [(&call, END_STREAM, ASKED), (&call, 0, half), (&foreign, 0, half)];
    for ((head, flags, body), closed) in requests.into_iter().zip(1..) {
        let mut raw = Raw::connect(served.address).await;
        for stream in (1..13).step_by(2) {
            raw.send(HEADERS, END_HEADERS, stream, head).await;
            raw.send(DATA, flags, stream, body).await;
            served.until("calls_under_way", 1).await;
            raw.send(RST_STREAM, 0, stream, &CANCEL).await;
            served.until("calls_under_way", 0).await;
            if stream == 9 {
                assert!(lives(&mut raw).await);
            }
        }
        assert_eq!(farewell(&raw.rest().await), Some(ENHANCE_YOUR_CALM));
        assert_eq!(served.stat("closed_for_cancels"), closed);
    }
}

/// Begins so many calls, with a further frame of this kind for each, in one write.
async fn begin_calls(raw: &mut Raw, calls: u32, kind: u8, payload: &[u8]) {
    let of_call =
        |stream| [frame(HEADERS, END_HEADERS, stream, &block(SLOW, "5S")), frame(kind, 0, stream, payload)].concat();
    let all: Vec<u8> = (1..2 * calls).step_by(2).flat_map(of_call).collect();
    raw.bytes(&all).await;
}

#[tokio::test]
async fn a_client_may_take_back_all_its_calls_at_once_and_not_again_and_again() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    begin_calls(&mut raw, 200, RST_STREAM, &CANCEL).await;
    assert!(lives(&mut raw).await);
    let mut raw = Raw::connect(served.address).await;
    begin_calls(&mut raw, 1_000, RST_STREAM, &CANCEL).await;
    assert_eq!(farewell(&raw.rest().await), Some(ENHANCE_YOUR_CALM));
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
async fn a_client_that_has_the_server_reset_its_calls_is_ended() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    begin_calls(&mut raw, 1_000, WINDOW_UPDATE, &[0; 4]).await;
    assert!(farewell(&raw.rest().await).is_some_and(|code| code != 0));
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
async fn a_block_of_fields_without_an_end_ends_the_connection() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    raw.send(HEADERS, 0, 1, &block(KEPT, "5S")).await;
    for _ in 0..10_000 {
        if !raw.send(CONTINUATION, 0, 1, &[]).await {
            break;
        }
    }
    assert!(farewell(&raw.rest().await).is_none_or(|code| code != 0));
    served.until("connections", 0).await;
}

/// The block of a call with a field that goes into the table of fields, as its newest entry, 62.
fn with_entry(name: &str, length: usize) -> Vec<u8> {
    let mut indexed = field(name, "v".repeat(length));
    indexed[0] = 0x40;
    [block(KEPT, "60S"), indexed].concat()
}

/// The block of a call with so many references to entry 62.
fn with_references(count: usize) -> Vec<u8> {
    [block(KEPT, "60S"), vec![0xBE; count]].concat()
}

#[tokio::test]
async fn few_bytes_that_stand_for_many_fields_are_refused_by_what_they_stand_for() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    raw.send(HEADERS, END_HEADERS, 1, &with_entry("x-large", 3_900)).await;
    raw.send(HEADERS, END_HEADERS, 3, &with_references(9)).await;
    let refused = raw.until(|frame| frame.stream == 3).await;
    assert_eq!(refused.kind, HEADERS, "HTTP status 431");
    assert!(lives(&mut raw).await);
    raw.send(HEADERS, END_HEADERS, 5, &with_references(10_000)).await;
    assert!(farewell(&raw.rest().await).is_some_and(|code| code != 0), "far too many end the connection");
}

#[tokio::test]
async fn calls_of_many_fields_are_taken_no_faster_than_their_budget_grows() {
    let served = Served::with(Limits::default());
    // 220 calls that HTTP/2 itself refuses cost 32 frames of control each, and 19 calls have nearly 400 fields too many each.
    // 4,000 are free, then 2,000 a second. The frames of one poll are paid later, so one more call waits.
    for (length, references, last) in [(3_900, 9, 443), (0, 450, 43)] {
        let mut raw = Raw::connect(served.address).await;
        raw.send(HEADERS, END_HEADERS | END_STREAM, 1, &with_entry("x", length)).await;
        let begun = Instant::now();
        for stream in (3..last).step_by(2) {
            raw.send(HEADERS, END_HEADERS | END_STREAM, stream, &with_references(references)).await;
        }
        raw.until(|frame| frame.stream == last - 2).await;
        raw.send(HEADERS, END_HEADERS | END_STREAM, last, &with_references(references)).await;
        raw.until(|frame| frame.stream == last).await;
        assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(lives(&mut raw).await, "nothing was refused");
    }
}

#[tokio::test]
async fn half_messages_of_all_connections_together_are_bounded_and_given_back() {
    let served = Served::with(Limits { max_bytes_in: 140_000, ..Limits::default() });
    let half = [&[0, 0, 0, 0xFF, 0xFF][..], &[7; 9_995]].concat();
    let mut all = Vec::new();
    for _ in 0..7 {
        let mut raw = Raw::connect(served.address).await;
        raw.send(HEADERS, END_HEADERS, 1, &block(KEPT, "20S")).await;
        raw.send(DATA, 0, 1, &half).await;
        all.push(raw);
    }
    served.until_at_least("request_bytes", 70_000).await;
    let mut past = Raw::connect(served.address).await;
    past.send(HEADERS, END_HEADERS, 1, &block(KEPT, "20S")).await;
    past.send(DATA, 0, 1, &half).await;
    past.until(|frame| frame.kind == HEADERS).await;
    let mut small = served.connect().await;
    assert_eq!(call(&mut small, KEPT, b"topic", "5S").await.1, "0", "a quarter is left to whole requests");
    drop(all);
    served.until("request_bytes", 0).await;
}

#[tokio::test]
async fn a_body_may_take_so_long_and_then_its_room_is_given_back() {
    let served = Served::with(Limits { body_timeout: Duration::from_millis(100), ..Limits::default() });
    let mut raw = Raw::connect(served.address).await;
    raw.send(HEADERS, END_HEADERS, 1, &block(KEPT, "20S")).await;
    raw.send(DATA, 0, 1, &[0, 0, 0, 0, 9, 7]).await;
    raw.until(|frame| frame.kind == HEADERS).await;
    served.until("request_bytes", 0).await;
}

#[tokio::test]
async fn connections_that_say_nothing_or_stop_answering_are_closed() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(100),
        keepalive: Duration::from_millis(100),
        keepalive_timeout: Duration::from_millis(100),
        ..Limits::default()
    };
    let served = Served::with(limits);
    let mut silent = Raw::silent(served.address).await;
    let mut dead = Raw::connect(served.address).await;
    assert!(silent.rest().await.is_empty());
    assert!(dead.rest().await.iter().any(|frame| frame.kind == PING), "it was asked before");
    served.until("connections", 0).await;
}

#[tokio::test]
async fn a_burst_of_connections_from_one_address_may_come_and_one_more_is_closed() {
    let served = Served::with(Limits { max_connection_rate: 1, ..Limits::default() });
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(served.connect().await);
    }
    assert_eq!(call(&mut all[9], KEPT, b"topic", "5S").await.1, "0");
    let refused = async {
        while served.stat("refused_connections") == 0 {
            drop(Raw::silent(served.address).await); // a second may have passed, and brought another one
        }
    };
    tokio::time::timeout(Duration::from_secs(20), refused).await.expect("one is closed");
}
