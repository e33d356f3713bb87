//! All that a peer can have the engine keep is in the account of its address, and is given back with it.
#![cfg(not(feature = "loom"))]

mod harness;

use harness::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, block, field, foreign, frame};
use harness::{
    AGAIN, Certificate, HEALTH, JOINED, KEPT, NEVER, REFLECTION, SLOW, STREAM, Served, call, framed, greet, gzip,
};
use namesrv_engine::Limits;

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
    let served = Served::with_client_certificates(&shown, &[&client]);
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
