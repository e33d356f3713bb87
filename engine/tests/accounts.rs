//! All that a peer can have the engine keep is in the account of its address, and is given back with it.
#![cfg(not(feature = "loom"))]

mod harness;

use harness::raw::{DATA, END_HEADERS, HEADERS, Raw, block, field, frame};
use harness::{AGAIN, Certificate, JOINED, KEPT, NEVER, REFLECTION, SLOW, STREAM, Served, call, framed};
use namesrv_engine::Limits;

const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// What a call takes beyond its bytes.
const CALL_BYTES: u64 = 1_024;

/// Waits until everything has been given back.
async fn nothing(served: &Served) {
    for name in ["connections", "calls_under_way", "request_bytes", "waiting_bytes"] {
        served.until(name, 0).await;
    }
}

/// The block of a request that is not gRPC.
fn foreign() -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("content-type", "text/plain")];
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
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

    // A connection.
    let raw = connected().await;
    served.until("connections", 1).await;
    drop(raw);
    nothing(&served).await;

    // Calls: what is not gRPC, one whose message has begun, one that Python has, and one of another kind.
    let half = [&[0, 0, 0, 0xFF, 0xFF][..], &[7; 10_000]].concat();
    let calls = [
        (foreign(), frame(DATA, 0, 1, b"text"), 0),
        (block(KEPT, "20S"), frame(DATA, 0, 1, &half), 10_000),
        (block(SLOW, "20S"), frame(DATA, 1, 1, &framed(0, NEVER)), 5),
        (block(REFLECTION, "20S"), frame(DATA, 1, 1, &framed(0, NEVER)), 5),
    ];
    for (fields, body, bytes) in calls {
        let mut raw = connected().await;
        raw.send(HEADERS, END_HEADERS, 1, &fields).await;
        raw.bytes(&body).await;
        served.until("calls_under_way", 1).await;
        served.until_at_least("request_bytes", CALL_BYTES + bytes).await;
        drop(raw);
        nothing(&served).await;
    }

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

    // Answers that nobody reads: one from the cache, and one of a stream.
    let mut raw = connected().await;
    raw.call(1, KEPT, &framed(0, &[7; 1_000]), "20S").await;
    served.until_at_least("waiting_bytes", 1_000).await;
    raw.call(3, STREAM, &framed(0, b""), "20S").await;
    served.until_at_least("waiting_bytes", 1_500).await;
    drop(raw);
    nothing(&served).await;
}

#[tokio::test]
async fn a_long_chain_of_certificates_is_counted_and_a_longer_one_refused() {
    let (shown, client) = (Certificate::new(), Certificate::with_names(60));
    let served = Served::with_client_certificates(&shown, &[&client]);
    let mut long = served.connect_showing(&shown, Some(&client), 2).await;
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
