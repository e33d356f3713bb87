//! The bounds of the engine, each at its value and one past it, as a client meets them.
#![cfg(not(feature = "loom"))]

mod harness;

use std::time::{Duration, Instant};

use harness::raw::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, PING,
    REFUSED_STREAM, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, block, field, foreign, frame,
};
use harness::{KEPT, NEVER, SLOW, Served, call};
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

/// So many calls that are begun and cancelled, in one write.
async fn take_back(raw: &mut Raw, calls: u32) {
    let mut all = Vec::new();
    for stream in (1..2 * calls).step_by(2) {
        all.extend(frame(HEADERS, END_HEADERS, stream, &block(SLOW, "5S")));
        all.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    raw.bytes(&all).await;
}

#[tokio::test]
async fn a_client_may_take_back_all_its_calls_at_once() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    take_back(&mut raw, 200).await;
    assert!(lives(&mut raw).await);
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
async fn calls_that_are_taken_back_again_and_again_end_the_connection() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    take_back(&mut raw, 1_000).await;
    assert_eq!(farewell(&raw.rest().await), Some(ENHANCE_YOUR_CALM));
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
async fn a_client_that_has_the_server_reset_its_calls_is_ended() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let mut all = Vec::new();
    for stream in (1..2_001).step_by(2) {
        all.extend(frame(HEADERS, END_HEADERS, stream, &block(SLOW, "5S")));
        all.extend(frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 0]));
    }
    raw.bytes(&all).await;
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

#[tokio::test]
async fn few_bytes_that_stand_for_many_fields_are_refused_by_what_they_stand_for() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let mut indexed = field("x-large", "v".repeat(3_900));
    indexed[0] = 0x40; // a literal that goes into the table, as its newest entry, 62
    raw.send(HEADERS, END_HEADERS, 1, &[block(KEPT, "5S"), indexed].concat()).await;
    let references = |count| [block(KEPT, "5S"), vec![0xBE; count]].concat(); // each stands for entry 62
    raw.send(HEADERS, END_HEADERS, 3, &references(9)).await;
    let refused = raw.until(|frame| frame.stream == 3).await;
    assert_eq!(refused.kind, HEADERS, "HTTP status 431");
    assert!(lives(&mut raw).await);
    raw.send(HEADERS, END_HEADERS, 5, &references(10_000)).await;
    assert!(farewell(&raw.rest().await).is_some_and(|code| code != 0), "far too many end the connection");
}

#[tokio::test]
async fn calls_that_http_2_itself_refuses_are_taken_no_faster_than_their_budget_grows() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let mut indexed = field("x-large", "v".repeat(3_900));
    indexed[0] = 0x40; // as above
    raw.send(HEADERS, END_HEADERS, 1, &[block(KEPT, "5S"), indexed].concat()).await;
    let too_large = [block(KEPT, "5S"), vec![0xBE; 9]].concat();
    let begun = Instant::now();
    for stream in (3..443).step_by(2) {
        raw.send(HEADERS, END_HEADERS | END_STREAM, stream, &too_large).await;
    }
    raw.until(|frame| frame.stream == 441).await;
    raw.send(HEADERS, END_HEADERS | END_STREAM, 443, &too_large).await;
    raw.until(|frame| frame.stream == 443).await;
    // 220 calls cost 32 frames of control each; 4,000 are free, then 2,000 a second. The frames of one poll are paid later.
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(lives(&mut raw).await);
}

#[tokio::test]
async fn calls_of_many_small_fields_are_taken_no_faster_than_their_budget_grows() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let mut indexed = field("x", "");
    indexed[0] = 0x40; // as above
    raw.send(HEADERS, END_HEADERS | END_STREAM, 1, &[block(KEPT, "60S"), indexed].concat()).await;
    let begun = Instant::now();
    let many = [block(KEPT, "60S"), vec![0xBE; 450]].concat();
    for stream in (3..43).step_by(2) {
        raw.send(HEADERS, END_HEADERS | END_STREAM, stream, &many).await;
    }
    raw.until(|frame| frame.stream == 41).await;
    // 19 calls of nearly 400 fields too many each; 4,000 are free, then 2,000 a second. The last ones of a poll are paid later.
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(lives(&mut raw).await, "nothing was refused");
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

#[tokio::test]
async fn answers_to_a_window_of_zero_wait_are_counted_and_are_given_back_with_the_connection() {
    let served = Served::with(Limits::default());
    let mut honest = served.connect().await;
    assert_eq!(call(&mut honest, KEPT, &[7; 1_000], "5S").await.1, "0");
    let no_window = [0, 4, 0, 0, 0, 0];
    let mut raw = Raw::with(served.address, &no_window).await;
    let body = [&[0, 0, 0, 3, 0xE8][..], &[7; 1_000]].concat();
    for stream in (1..100).step_by(2) {
        raw.call(stream, KEPT, &body, "5S").await;
    }
    let waiting = async {
        while served.stat("waiting_bytes") < 50 * 1_000 {
            assert_eq!(call(&mut honest, KEPT, &[7; 1_000], "5S").await.1, "0");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("all of it is counted");
    drop(raw);
    served.until("connections", 1).await;
    assert_eq!(call(&mut honest, SLOW, NEVER, "10m").await.1, "4", "a turn later");
    served.until("waiting_bytes", 0).await;
}
