//! The bounds of the engine, each at its value and one past it, as a client meets them.
#![cfg(not(loom))]

mod harness;

use harness::raw::{ACK, GOAWAY, HEADERS, PING, Raw, WINDOW_UPDATE};
use harness::{SLOW, Served};
use namesrv_engine::Limits;

#[tokio::test]
async fn a_call_that_crosses_the_farewell_costs_no_other_call() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    raw.call(1, SLOW, b"\0\0\0\0\x05never", "300m").await;
    served.until("calls_under_way", 1).await;
    served.engine.stop(1);
    let asked = raw.until(|frame| frame.kind == PING && frame.flags & ACK == 0).await;
    raw.send(PING, ACK, 0, &asked.payload).await;
    raw.call(3, SLOW, b"\0\0\0\0\x05never", "300m").await;
    raw.send(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 9]).await;
    let frames = raw.to_the_end().await;
    let said: Vec<_> = frames.iter().filter(|frame| frame.kind == GOAWAY).map(|frame| frame.code()).collect();
    assert!(said.iter().all(|code| *code == 0), "{said:?}");
    assert!(frames.iter().any(|frame| frame.kind == HEADERS && frame.stream == 1), "the first call has its answer");
}
