//! The engine as a client meets it, with this test instead of Python: answers, authorities, and calls that come again.
#![cfg(not(feature = "loom"))]

mod harness;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use harness::raw::{
    CANCEL, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, PROTOCOL_ERROR, RST_STREAM, Raw,
    block, block_for, field,
};
use harness::{AGAIN, Certificate, KEPT, NEVER, SLOW, STREAM, Served, call};
use namesrv_engine::Limits;

#[tokio::test]
async fn what_was_answered_before_is_answered_again_without_asking_until_it_changes() {
    let served = Served::with(Limits::default());
    let mut client = served.connect().await;
    let expected = (Bytes::from_static(b"\0\0\0\0\x0cheader topic"), "0".to_owned());
    for hits in 0..3 {
        assert_eq!(call(&mut client, KEPT, b"topic", "5S").await, expected);
        assert_eq!((served.hits(), served.stat("asked_calls")), (hits, 1));
    }
    served.engine.cache().change(["dependency"], Some(Bytes::from_static(b"HEADER ")));
    assert_eq!(call(&mut client, KEPT, b"topic", "5S").await, expected, "asked again");
    assert_eq!((served.hits(), served.stat("asked_calls")), (2, 2));
}

#[tokio::test]
async fn a_stream_brings_its_messages_in_order_and_then_its_status() {
    let served = Served::with(Limits::default());
    let expected = Bytes::from_static(b"\0\0\0\0\x05first\0\0\0\0\x06second");
    assert_eq!(call(&mut served.connect().await, STREAM, b"", "5S").await, (expected, "0".to_owned()));
}

#[tokio::test]
async fn a_call_that_nobody_answers_ends_at_its_deadline_and_one_that_is_not_there_at_once() {
    let served = Served::with(Limits::default());
    let mut client = served.connect().await;
    assert_eq!(call(&mut client, SLOW, NEVER, "50m").await, (Bytes::new(), "4".to_owned()));
    assert_eq!(call(&mut client, "/a.B/Missing", b"", "5S").await, (Bytes::new(), "12".to_owned()));
    assert_eq!(served.stat("calls_under_way"), 0);
}

#[tokio::test]
async fn beyond_the_calls_under_way_another_one_is_refused_and_hits_are_not() {
    let served = Served::with(Limits { max_calls: 1, ..Limits::default() });
    let mut client = served.connect().await;
    call(&mut client, KEPT, b"topic", "5S").await;
    let mut other = client.clone();
    let slow = tokio::spawn(async move { call(&mut other, SLOW, NEVER, "2S").await });
    served.until("calls_under_way", 1).await;
    assert_eq!(call(&mut client, SLOW, NEVER, "5S").await.1, "8");
    assert_eq!(call(&mut client, KEPT, b"topic", "5S").await.1, "0");
    assert_eq!(slow.await.expect("ends").1, "4");
}

#[tokio::test]
async fn beyond_the_connections_another_one_is_closed() {
    let served = Served::with(Limits { max_connections: 1, ..Limits::default() });
    let mut client = served.connect().await;
    assert_eq!(call(&mut client, KEPT, b"topic", "5S").await.1, "0");
    let socket = tokio::net::TcpStream::connect(served.address).await.expect("connects");
    let closed = tokio::time::timeout(Duration::from_secs(5), async {
        let mut byte = [0];
        matches!(tokio::io::AsyncReadExt::read(&mut { socket }, &mut byte).await, Ok(0) | Err(_))
    });
    assert!(closed.await.expect("in time"));
    assert_eq!(served.stat("refused_connections"), 1);
}

/// `Kept` answers an empty message with its header.
const ANSWER: &[u8] = b"\0\0\0\0\x07header ";

/// Sends a call with this field as its target: gRPC libraries send spellings that are no authority of a URI. Returns what the
/// stream brings first, which is the answer's data or its reset.
async fn outcome(raw: &mut Raw, stream: u32, target: &[u8]) -> Frame {
    assert!(raw.send(HEADERS, END_HEADERS, stream, &block_for(target, KEPT, "5S")).await);
    assert!(raw.send(DATA, END_STREAM, stream, &[0; 5]).await);
    raw.until(|frame| frame.stream == stream && [DATA, RST_STREAM].contains(&frame.kind)).await
}

#[tokio::test]
async fn every_authority_of_visible_bytes_is_served_and_none_with_a_host_or_without() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    // Lists, zones of IPv6, Unix sockets, whole targets, and what no URI has.
    let all: String = ('!'..='~').collect();
    let authorities = [
        "",
        "[::1]:9876,NameSrv.Example:9877",
        "[fe80::1%eth0]:9876",
        "/run/namesrv.sock",
        "%2Frun%2Fname%20server.sock",
        "@namesrv",
        "dns:///namesrv:9876",
        &all,
    ];
    let without = [vec![], field("host", "127.0.0.1:9876,127.0.0.2:9876")];
    let targets = authorities.map(|authority| field(":authority", authority)).into_iter().chain(without);
    for (target, stream) in targets.zip((1..).step_by(2)) {
        let frame = outcome(&mut raw, stream, &target).await;
        assert_eq!((frame.kind, &frame.payload[..]), (DATA, ANSWER), "{target:?}");
    }
}

#[tokio::test]
async fn an_authority_of_other_bytes_ends_its_call_alone() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let refused = ["name srv", "namesrv ", "\tnamesrv", "name\0srv", "name\r\nsrv", "name\x7fsrv", "nämesrv"];
    for (authority, stream) in refused.into_iter().zip((1..).step_by(4)) {
        let frame = outcome(&mut raw, stream, &field(":authority", authority)).await;
        assert_eq!((frame.kind, frame.payload.len()), (RST_STREAM, 4), "{authority:?}");
        assert_eq!(frame.code(), PROTOCOL_ERROR, "{authority:?}");
        let next = outcome(&mut raw, stream + 2, &field(":authority", "namesrv")).await;
        assert_eq!((next.kind, &next.payload[..]), (DATA, ANSWER), "after {authority:?}");
    }
}

// Calls that Python knows by their numbers.

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
    let served = Served::with_client_certificates(&shown, &[&client], true);
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

// Panics, with a reader of standard error and without.

const PANICS: &str = "NAMESRV_ENGINE_TEST_PANICS";

#[test]
fn a_panic_ends_its_thread_alone_with_a_line_that_need_not_be_read() {
    if std::env::var_os(PANICS).is_some() {
        namesrv_engine::tell_panics_in_lines();
        let named = std::thread::Builder::new().name("engine-0".to_owned());
        let thread = named.spawn(|| panic!("it {}\n\u{1b}\u{e4}\u{1f600}", "\"broke\\"));
        assert!(thread.expect("starts").join().is_err());
        return;
    }
    let (nobody, closed) = UnixStream::pair().expect("two sockets");
    drop(nobody);
    let this = std::env::current_exe().expect("a path");
    let [unread, read] = [Stdio::from(OwnedFd::from(closed)), Stdio::piped()].map(|stderr| {
        Command::new(&this)
            .args(["--exact", "--nocapture", "a_panic_ends_its_thread_alone_with_a_line_that_need_not_be_read"])
            .env(PANICS, "1")
            .env_remove("RUST_BACKTRACE")
            .stdout(Stdio::null())
            .stderr(stderr)
            .output()
            .expect("starts")
    });
    assert!(unread.status.success() && read.status.success());
    let line = String::from_utf8(read.stderr).expect("ASCII");
    let begin = r#"{"event": "engine_panicked", "level": "error", "logger": "namesrv_engine", "problem": "it \"broke\\\u000a\u001b\u00e4\ud83d\ude00", "at": "tests/served.rs:"#;
    assert!(line.starts_with(begin), "{line}");
    assert!(line.ends_with("\"thread\": \"engine-0\"}\n"), "{line}");
}
