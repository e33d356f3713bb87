//! The bounds of the engine, each at its value and one past it, as a client meets them. And all that a peer can have the
//! engine keep is in the account of its address, and is given back with it.
#![cfg(not(feature = "loom"))]

mod harness;

use std::time::{Duration, Instant};

use harness::raw::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, PING, REFUSED_STREAM,
    RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, block, field, foreign, frame,
};
use harness::{
    AGAIN, Certificate, HEALTH, JOINED, KEPT, NEVER, REFLECTION, SLOW, STREAM, Served, call, framed, greet, gzip,
};
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

// Accounts.

const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// What a call takes beyond its bytes.
const CALL_BYTES: u64 = 4_096;

/// What an answer without a message takes.
const STATUS_BYTES: u64 = 1_024;

/// Waits until everything has been given back.
async fn nothing(served: &Served) {
    served.until("calls_under_way", 0).await;
    let accepted = served.stat("accepted_connections");
    drop(served.connect().await); // the end of a connection renews the count of what waits
    served.until_at_least("accepted_connections", accepted + 1).await;
    for name in ["connections", "request_bytes", "waiting_bytes"] {
        served.until(name, 0).await;
    }
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // Python's thread waits for it, as it should
async fn all_that_a_peer_can_have_kept_is_counted_and_given_back() {
    let served = Served::with(Limits::default());
    let connected = || Raw::with(served.address, &NO_WINDOW);
    let mut honest = served.connect().await;
    for (path, message) in [(KEPT, &[7; 1_000][..]), (AGAIN, b"again")] {
        assert_eq!(call(&mut honest, path, message, "5S").await.1, "0");
    }
    drop(honest);
    nothing(&served).await;

    // What one connection sends, and what that has the engine keep.
    let head = |stream, path| frame(HEADERS, END_HEADERS, stream, &block(path, "20S"));
    let whole = |path| [head(1, path), frame(DATA, END_STREAM, 1, &framed(0, NEVER))].concat();
    let half = [&[0, 0, 0, 0xFF, 0xFF][..], &[7; 10_000]].concat();
    let packed = [&block(SLOW, "20S")[..], &field("grpc-encoding", "gzip")].concat();
    let unpacked = frame(DATA, END_STREAM, 1, &framed(1, &gzip(&vec![7; 1_000_000])));
    let kept = frame(DATA, END_STREAM, 1, &framed(0, &[7; 1_000]));
    let rows = [
        ("a connection", vec![], "connections", 1),
        ("what is not gRPC", frame(HEADERS, END_HEADERS, 1, &foreign()), "request_bytes", CALL_BYTES),
        ("half a message", [head(1, KEPT), frame(DATA, 0, 1, &half)].concat(), "request_bytes", CALL_BYTES + 10_000),
        ("a call that Python has", whole(SLOW), "request_bytes", CALL_BYTES),
        ("a call", whole(SLOW), "calls_under_way", 1),
        ("a call of health", whole(HEALTH), "calls_under_way", 1),
        ("a call of reflection", whole(REFLECTION), "calls_under_way", 1),
        (
            "a message that is decompressed",
            [frame(HEADERS, END_HEADERS, 1, &packed), unpacked].concat(),
            "request_bytes",
            CALL_BYTES + 1_000_000,
        ),
        ("an answer that nobody reads", [head(1, KEPT), kept].concat(), "waiting_bytes", 1_000),
        ("the same of a stream", whole(STREAM), "waiting_bytes", 500),
    ];
    for (what, sent, gauge, amount) in rows {
        println!("{what}");
        let mut raw = connected().await;
        raw.bytes(&sent).await;
        served.until_at_least(gauge, amount).await;
        drop(raw);
        nothing(&served).await;
    }

    // Answers without a message, beyond the buffers of the system. A call that Python gets comes after those before it. A
    // connection whose answers cannot leave may not be read further.
    let mut raw = Raw::narrow(served.address).await;
    let mut streams = (1..).step_by(2);
    let are_stuck = || served.stat("waiting_bytes") >= 32 * STATUS_BYTES;
    while !are_stuck() {
        for stream in streams.by_ref().take(32) {
            raw.send(HEADERS, END_HEADERS | END_STREAM, stream, &block("/a.B/None", "20S")).await;
        }
        let asked = served.stat("asked_calls");
        raw.call(streams.next().expect("endless"), SLOW, &framed(0, NEVER), "20S").await;
        served.until_is("asked_calls", asked + 1, |now| now > asked || are_stuck()).await;
    }
    drop(raw);
    nothing(&served).await;

    // While Python is busy: a call that it knows by a number, and the unread messages of a stream.
    let busy = served.busy.lock().expect("no test panicked");
    let mut raw = connected().await;
    raw.call(1, AGAIN, &framed(0, b"again"), "20S").await;
    served.until("calls_under_way", 1).await;
    raw.send(HEADERS, END_HEADERS, 3, &block(JOINED, "20S")).await;
    for _ in 0..4 {
        raw.send(DATA, 0, 3, &framed(0, &[7; 16_000])).await;
    }
    served.until_at_least("request_bytes", 4 * 16_000 + 2 * CALL_BYTES).await;
    drop((raw, busy));
    nothing(&served).await;
}

#[tokio::test]
async fn a_long_chain_of_certificates_is_counted_and_a_longer_one_refused() {
    let (shown, client) = (Certificate::new(), Certificate::with_names(60));
    let served = Served::with_client_certificates(&shown, &[&client], false);
    let mut long = greet(served.shake_hands(&shown.connector(Some(&client), 2)).await).await;
    served.until_at_least("request_bytes", 1_000).await;
    assert_eq!(call(&mut long, KEPT, b"topic", "5S").await.1, "0");
    drop(long);
    nothing(&served).await;
    for (client, times) in [(&client, 4), (&Certificate::new(), 9)] {
        served.accept_clients(&shown, &[client]);
        let before = served.stat("refused_connections");
        drop(served.shake_hands(&shown.connector(Some(client), times)).await);
        served.until("refused_connections", before + 1).await;
    }
    nothing(&served).await;
}
