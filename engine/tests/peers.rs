//! The engine under peers that it must survive, and whose rights change.
#![cfg(not(feature = "loom"))]

mod harness;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;
use harness::raw::{END_HEADERS, HEADERS, RST_STREAM, Raw, SETTINGS, block};
use harness::{
    Certificate, HEALTH, JOINED, KEPT, LARGE, MAX_MESSAGE, NEVER, REFLECTION, SLOW, STREAM, Served, call, call_with,
    framed, gzip, until,
};
use namesrv_engine::Limits;

const GZIP: [(&str, &str); 1] = [("grpc-encoding", "gzip")];

#[tokio::test]
async fn a_compressed_message_is_taken_in_a_call_and_in_a_stream() {
    let served = Served::with(Limits::default());
    let mut client = served.connect().await;
    let one = call_with(&mut client, KEPT, framed(1, &gzip(b"topic")), "5S", &GZIP).await;
    assert_eq!(one, (Bytes::from_static(b"\0\0\0\0\x0cheader topic"), "0".to_owned()));
    let three = [framed(1, &gzip(b"a ")), framed(0, b"few "), framed(1, &gzip(b"messages"))].concat();
    let joined = call_with(&mut client, JOINED, three, "5S", &GZIP).await;
    assert_eq!(joined, (Bytes::from_static(b"\0\0\0\0\x0ea few messages"), "0".to_owned()));
    for (flags, message) in [(1, b"no gzip"), (2, b"unknown")] {
        assert_eq!(call_with(&mut client, JOINED, framed(flags, message), "5S", &GZIP).await.1, "13", "{flags}");
    }
    served.until("request_bytes", 0).await;
}

#[tokio::test]
async fn each_method_has_a_largest_message_of_its_own() {
    let served = Served::with(Limits::default());
    let mut client = served.connect().await;
    for (path, length, status) in
        [(KEPT, MAX_MESSAGE + 1, "8"), (LARGE, 2 * MAX_MESSAGE, "0"), (LARGE, 2 * MAX_MESSAGE + 1, "8")]
    {
        let message = vec![7; length];
        assert_eq!(call(&mut client, path, &message, "20S").await.1, status, "{path} {length}");
        let compressed = framed(1, &gzip(&message));
        assert_eq!(call_with(&mut client, path, compressed, "20S", &GZIP).await.1, status, "{path} {length}");
    }
    served.until("request_bytes", 0).await;
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_while_its_message_waits_to_be_decompressed() {
    let served = Served::with(Limits::default());
    let mut client = served.connect().await;
    let zeros = framed(1, &gzip(&vec![0; 4 << 20]));
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let (mut client, zeros) = (client.clone(), zeros.clone());
        waiting.push(tokio::spawn(async move { call_with(&mut client, SLOW, zeros, "1m", &GZIP).await.1 }));
    }
    assert_eq!(call(&mut client, KEPT, b"topic", "20S").await.1, "0");
    for waiting in waiting {
        assert_eq!(waiting.await.expect("ends"), "4");
    }
    served.until("request_bytes", 0).await;
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // Python's thread waits for it, as it should
async fn calls_that_began_before_permits_were_read_anew_teach_the_engine_nothing() {
    let served = Served::with_permits(Limits::default());
    let mut client = served.connect().await;
    let token = [("authorization", "Bearer x")];
    let asked = |client: &mut _| {
        let mut client: h2::client::SendRequest<Bytes> = Clone::clone(client);
        async move { call_with(&mut client, KEPT, framed(0, b"topic"), "20S", &token).await.1 }
    };
    assert_eq!(asked(&mut client).await, "0");
    assert_eq!(asked(&mut client).await, "0");
    assert_eq!((served.hits(), served.stat("asked_calls")), (1, 1), "the second one is answered from the cache");
    let busy = served.busy.lock().expect("no test panicked");
    served.engine.renew_permits();
    let old = tokio::spawn(asked(&mut client));
    served.until("asked_calls", 2).await;
    served.engine.renew_permits();
    drop(busy);
    assert_eq!(old.await.expect("ends"), "0");
    assert_eq!(asked(&mut client).await, "0");
    assert_eq!((served.hits(), served.stat("asked_calls")), (1, 3), "what it taught is not used");
    assert_eq!(asked(&mut client).await, "0");
    assert_eq!(served.hits(), 2);
}

#[tokio::test]
async fn calls_end_when_the_certificate_of_their_connection_is_no_longer_accepted() {
    let [shown, leaving, staying] = [Certificate::new(), Certificate::new(), Certificate::new()];
    let served = Served::with_client_certificates(&shown, &[&leaving, &staying], false);
    let mut refused = served.connect_as(&shown, Some(&leaving)).await;
    let mut accepted = served.connect_as(&shown, Some(&staying)).await;
    let slow = |client: &h2::client::SendRequest<Bytes>, timeout: &'static str| {
        let mut client = client.clone();
        tokio::spawn(async move { call(&mut client, SLOW, NEVER, timeout).await.1 })
    };
    let (ends, goes_on) = (slow(&refused, "20S"), slow(&accepted, "2S"));
    served.until("calls_under_way", 2).await;
    served.accept_clients(&shown, &[&leaving, &staying]);
    assert_eq!(call(&mut refused, KEPT, b"topic", "5S").await.1, "0", "nothing changed");
    served.accept_clients(&shown, &[&staying]);
    assert_eq!(ends.await.expect("ends"), "16");
    served.until("connections", 1).await;
    assert_eq!(call(&mut accepted, KEPT, b"topic", "5S").await.1, "0");
    assert_eq!(goes_on.await.expect("ends"), "4", "at its own deadline");
}

#[tokio::test]
async fn a_reader_that_is_cut_within_a_message_gets_the_status() {
    let served = Served::with(Limits::default());
    let initial_window_of_eight = [0, 4, 0, 0, 0, 8];
    let mut raw = Raw::with(served.address, &initial_window_of_eight).await;
    raw.call(1, STREAM, b"\0\0\0\0\0", "100m").await;
    let part = raw.until(|frame| frame.kind == 0 && frame.stream == 1).await;
    assert_eq!(part.payload, b"\0\0\0\0\x05fir");
    let ended = raw.until(|frame| frame.stream == 1).await;
    assert_eq!((ended.kind, ended.flags & 1), (HEADERS, 1), "trailers, and no reset: {ended:?}");
}

/// The HTTP/2 errors with a count above zero.
fn errors(served: &Served) -> Vec<(String, u64)> {
    served.engine.http2_errors().into_iter().filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn http_2_errors_are_counted_by_their_reason() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let without_path = block("", "5S");
    raw.send(HEADERS, END_HEADERS | 1, 1, &without_path).await;
    let reset = raw.until(|frame| frame.kind == RST_STREAM).await;
    assert_eq!(reset.code(), 1);
    assert_eq!(errors(&served), [("PROTOCOL_ERROR".to_owned(), 1)]);
    raw.call(3, SLOW, &framed(0, NEVER), "20m").await;
    raw.until(|frame| frame.kind == HEADERS && frame.stream == 3).await;
    raw.send(SETTINGS, 0, 7, &[]).await;
    while raw.next().await.is_some() {}
    // The connection ends just before its error is counted.
    until(|| errors(&served) == [("PROTOCOL_ERROR".to_owned(), 2)], || format!("{:?}", errors(&served))).await;
}

/// Another address than the honest one.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

async fn attacker(served: &Served) -> Raw {
    Raw::silent_from(ATTACKER, served.address).await.greet(&[]).await
}

#[tokio::test]
async fn open_calls_of_each_kind_are_limited_by_address_before_they_are_whole() {
    let (max_calls, max_health_calls, max_reflection_calls) = (10, 10, 10);
    let limits = Limits { max_calls, max_health_calls, max_reflection_calls, kept_percent: 0, ..Limits::default() };
    let served = Served::with_addresses(limits);
    let (mut raw, mut past) = (attacker(&served).await, attacker(&served).await);
    for (path, first, held) in [(KEPT, 1, 5), (REFLECTION, 11, 10), (HEALTH, 21, 15)] {
        for stream in (first..first + 10).step_by(2) {
            raw.send(HEADERS, END_HEADERS, stream, &block(path, "20S")).await;
        }
        served.until("calls_under_way", held).await;
        past.send(HEADERS, END_HEADERS, first, &block(path, "20S")).await;
        let refused = past.until(|frame| frame.stream == first).await;
        assert_eq!((refused.kind, refused.flags & 1), (HEADERS, 1), "it ends with a status");
    }
    let mut honest = served.connect().await;
    assert_eq!(call(&mut honest, STREAM, b"", "5S").await.1, "0");
    drop(raw);
    served.until("calls_under_way", 0).await;
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // Python's thread waits for it, as it should
async fn bytes_of_requests_are_limited_by_address_until_python_lets_go_of_them() {
    let limits = Limits { max_bytes_in: 136_000, kept_percent: 0, ..Limits::default() };
    let served = Served::with_addresses(limits);
    let busy = served.busy.lock().expect("no test panicked");
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut raw = attacker(&served).await;
        raw.call(1, SLOW, &framed(0, &[7; 12_000]), "20S").await;
        held.push(raw);
    }
    served.until("calls_under_way", 4).await;
    served.until_at_least("request_bytes", 48_000).await;
    let mut past = attacker(&served).await;
    past.call(1, SLOW, &framed(0, &[7; 12_000]), "20S").await;
    past.until(|frame| frame.kind == HEADERS && frame.stream == 1).await;
    drop(held);
    served.until("calls_under_way", 0).await;
    assert!(served.stat("request_bytes") > 48_000, "the requests are still in the list of events");
    drop(busy);
    served.until("request_bytes", 0).await;
}

#[tokio::test]
async fn one_address_fills_the_cache_no_faster_than_it_may_and_another_one_still_does() {
    let served = Served::with_addresses(Limits::default());
    let mut client = served.connect().await;
    let mut topic = vec![7; 15_000];
    let began = std::time::Instant::now();
    for number in 0..1_000_u32 {
        topic[..4].copy_from_slice(&number.to_be_bytes());
        assert_eq!(call(&mut client, KEPT, &topic, "5S").await.1, "0");
    }
    let kept = served.stat("cache_answers");
    let admitted = (20 << 20) + (2 << 20) * (began.elapsed().as_secs() + 1);
    assert!(kept >= 600 && kept * 15_000 < admitted, "{kept}: 20 MiB at once, and 2 MiB a second");
    let mut another = attacker(&served).await;
    another.call(1, KEPT, &framed(0, b"topic"), "5S").await;
    served.until_at_least("cache_answers", kept + 1).await;
}

#[tokio::test]
async fn a_stream_keeps_its_metadata_and_not_its_request() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::with(served.address, &[0, 4, 0, 0, 0, 0]).await;
    raw.call(1, STREAM, &framed(0, &[7; 12_000]), "20S").await;
    served.until_at_least("waiting_bytes", 1).await;
    assert_eq!(served.stat("calls_under_way"), 1);
    let kept = served.stat("request_bytes");
    assert!((1..2_000).contains(&kept), "{kept}");
}

#[tokio::test]
async fn silent_handshakes_time_out_and_are_limited_by_address() {
    let certificate = Certificate::new();
    let impatient = Limits { handshake_timeout: Duration::from_millis(50), ..Limits::default() };
    let of_few = Limits { trust_loopback: false, caller_percent: 1, ..Limits::default() };
    for (limits, count) in [(impatient, 20), (of_few, 60)] {
        let served = Served::with_tls(limits, &certificate);
        let mut silent = Vec::new();
        for _ in 0..count {
            silent.push(Raw::silent_from(ATTACKER, served.address).await);
        }
        served.until("refused_connections", 20).await;
        let mut honest = served.connect_as(&certificate, None).await;
        assert_eq!(call(&mut honest, KEPT, b"topic", "5S").await.1, "0");
        served.until("connections", count - 20 + 1).await;
    }
}

#[tokio::test]
async fn readers_of_the_address_that_holds_most_are_closed_and_an_honest_slow_reader_is_not() {
    let limits = Limits { max_waiting: 1 << 20, ..Limits::default() };
    let served = Served::with_addresses(limits);
    let topic = vec![7; 15_000];
    let mut filler = served.connect().await;
    assert_eq!(call(&mut filler, KEPT, &topic, "5S").await.1, "0");
    let no_window = [0, 4, 0, 0, 0, 0];
    let mut slow = Raw::with(served.address, &no_window).await;
    for call in 0..12 {
        slow.call(2 * call + 1, KEPT, &framed(0, &topic), "20S").await;
    }
    served.until_at_least("waiting_bytes", 180_000).await;
    let mut many = Vec::new();
    for _ in 0..80 {
        let mut raw = attacker(&served).await;
        raw.send(SETTINGS, 0, 0, &no_window).await;
        raw.call(1, KEPT, &framed(0, &topic), "20S").await;
        many.push(raw);
    }
    served.until_at_least("closed_for_waiting", 10).await;
    assert!(slow.send(harness::raw::PING, 0, 0, b"a ping!!").await);
    slow.until(|frame| frame.kind == harness::raw::PING && frame.flags & harness::raw::ACK != 0).await;
}
