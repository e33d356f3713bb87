//! Calls that Python knows by their numbers, as their clients meet them.
#![cfg(not(feature = "loom"))]

mod harness;

use std::time::Duration;

use harness::raw::{
    CANCEL, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, RST_STREAM, Raw, block, field,
};
use harness::{AGAIN, Certificate, Served, call};
use namesrv_engine::Limits;

/// `again`, as it travels.
const ASKED: &[u8] = b"\0\0\0\0\x05again";

/// Most calls of a connection that wait for Python without a task.
const MAX_PARKED: u32 = 64;

async fn learned(limits: Limits) -> Served {
    let served = Served::with(limits);
    let mut client = served.connect().await;
    for message in [&b"again"[..], b"refuse"] {
        let (answer, status) = call(&mut client, AGAIN, message, "10S").await;
        assert_eq!((&answer[5..], status.as_str()), (&b"first"[..], "0"));
    }
    served
}

#[tokio::test]
async fn a_call_that_comes_again_comes_by_its_number_and_is_counted_when_it_is_answered() {
    let served = learned(Limits::default()).await;
    let mut client = served.connect().await;
    let (answer, status) = call(&mut client, AGAIN, b"again", "10S").await;
    assert_eq!((&answer[5..], status.as_str()), (&b"again 7"[..], "0"));
    assert_eq!((served.hits(), served.stat("asked_calls")), (1, 3));
    served.engine.forget_known();
    let (answer, _) = call(&mut client, AGAIN, b"again", "10S").await;
    assert_eq!(&answer[5..], b"first");
}

#[tokio::test]
async fn one_that_its_caller_traces_is_seen_as_a_whole() {
    let served = learned(Limits::default()).await;
    let mut raw = Raw::connect(served.address).await;
    let traced = field("traceparent", format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16)));
    raw.send(HEADERS, END_HEADERS, 1, &[block(AGAIN, "10S"), traced].concat()).await;
    raw.send(DATA, END_STREAM, 1, ASKED).await;
    assert_eq!(&raw.until(|frame| frame.kind == DATA).await.payload[5..], b"first");
    raw.call(3, AGAIN, ASKED, "10S").await;
    assert_eq!(&raw.until(|frame| frame.kind == DATA).await.payload[5..], b"again 7");
}

#[tokio::test]
async fn one_of_a_caller_with_a_long_certificate_is_known_too() {
    let (shown, client) = (Certificate::new(), Certificate::with_names(60));
    let served = Served::with_certificates_and_permits(&shown, &[&client]);
    let mut connection = served.connect_as(&shown, Some(&client)).await;
    for expected in [&b"first"[..], b"again 7"] {
        assert_eq!(&call(&mut connection, AGAIN, b"again", "10S").await.0[5..], expected);
    }
}

#[tokio::test]
async fn python_may_end_it_in_another_way() {
    let served = learned(Limits::default()).await;
    let (_, status) = call(&mut served.connect().await, AGAIN, b"refuse", "10S").await;
    assert_eq!((status.as_str(), served.hits()), ("5", 0));
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // nobody but Python's thread wants it, which is to wait
async fn one_whose_time_is_over_when_python_comes_to_it_is_told_so() {
    let served = learned(Limits::default()).await;
    let mut client = served.connect().await;
    let busy = served.busy.lock().expect("no test panicked");
    let asked = tokio::spawn(async move { call(&mut client, AGAIN, b"again", "10m").await.1 });
    served.until("calls_under_way", 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(busy);
    assert_eq!(asked.await.expect("ends"), "4");
    served.until("calls_under_way", 0).await;
    assert_eq!(served.stat("cancelled_calls"), 1);
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // as above
async fn those_that_the_client_cancels_meanwhile_count_as_cancelled() {
    let served = learned(Limits { max_cancels: 2, ..Limits::default() }).await;
    let busy = served.busy.lock().expect("no test panicked");
    let mut raw = Raw::connect(served.address).await;
    for number in 0..3 {
        raw.call(2 * number + 1, AGAIN, ASKED, "10S").await;
        raw.send(RST_STREAM, 0, 2 * number + 1, &CANCEL).await;
    }
    served.until("asked_calls", 5).await;
    assert_eq!(served.stat("cancelled_calls"), 0);
    drop(busy);
    served.until("cancelled_calls", 3).await;
    let farewell = raw.rest().await.iter().rfind(|frame| frame.kind == GOAWAY).map(Frame::code);
    assert_eq!((farewell, served.stat("calls_under_way")), (Some(ENHANCE_YOUR_CALM), 0));
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // as above
async fn so_many_of_a_connection_wait_without_a_task_and_one_more_has_one() {
    let served = learned(Limits::default()).await;
    let busy = served.busy.lock().expect("no test panicked");
    let mut raw = Raw::connect(served.address).await;
    for number in 0..=MAX_PARKED {
        served.until("calls_under_way", u64::from(number)).await;
        raw.call(2 * number + 1, AGAIN, ASKED, "10S").await;
    }
    served.until("calls_under_way", u64::from(MAX_PARKED) + 1).await;
    raw.send(RST_STREAM, 0, 2 * MAX_PARKED + 1, &CANCEL).await;
    served.until("cancelled_calls", 1).await; // though Python is busy
    assert_eq!(served.stat("calls_under_way"), u64::from(MAX_PARKED));
    drop(busy);
    served.until("calls_under_way", 0).await;
    assert_eq!((served.hits(), served.stat("cancelled_calls")), (u64::from(MAX_PARKED), 1));
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // as above
async fn the_engine_ends_although_python_never_answered() {
    let served = learned(Limits::default()).await;
    let busy = served.busy.lock().expect("no test panicked");
    let mut raw = Raw::connect(served.address).await;
    raw.call(1, AGAIN, ASKED, "10S").await;
    served.until("calls_under_way", 1).await;
    served.engine.stop(3);
    served.engine.join();
    served.until("calls_under_way", 0).await;
    drop(busy);
}
