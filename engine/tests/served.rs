//! The engine as a client meets it, with this test instead of Python.
#![cfg(not(feature = "loom"))]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use harness::{KEPT, NEVER, SLOW, STREAM, Served, call};
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
