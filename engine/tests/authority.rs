//! What clients send as their target: gRPC libraries send spellings that are no authority of a URI.
#![cfg(not(feature = "loom"))]

mod harness;

use harness::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, PROTOCOL_ERROR, RST_STREAM, Raw, block_for, field};
use harness::{KEPT, Served};
use namesrv_engine::Limits;

/// `Kept` answers an empty message with its header.
const ANSWER: &[u8] = b"\0\0\0\0\x07header ";

/// Sends a call with this field; what the stream brings first, which is the answer's data or its reset.
async fn outcome(raw: &mut Raw, stream: u32, target: &[u8]) -> harness::raw::Frame {
    assert!(raw.send(HEADERS, END_HEADERS, stream, &block_for(target, KEPT, "5S")).await);
    assert!(raw.send(DATA, END_STREAM, stream, &[0; 5]).await);
    raw.until(|frame| frame.stream == stream && [DATA, RST_STREAM].contains(&frame.kind)).await
}

#[tokio::test]
async fn every_authority_of_visible_bytes_is_served() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    let authorities = [
        "127.0.0.1:9876",
        "NameSrv.Example:9876",
        "[::1]:9876",
        "NAMESRV:9876",
        // Lists.
        "127.0.0.1:9876,127.0.0.2:9876",
        "[::1]:9876,[::1]:9877",
        "%5B::1%5D:9876",
        // Zones of IPv6.
        "[fe80::1%eth0]:9876",
        "[fe80::1%25eth0]:9876",
        // Unix sockets: paths, escaped paths and abstract names.
        "/run/namesrv.sock",
        "run/namesrv.sock",
        "%2Frun%2Fnamesrv.sock",
        "tmp%2Fname%20server.sock",
        "@namesrv",
        "%00namesrv",
        // Whole targets.
        "dns:///namesrv:9876",
        "ipv4:127.0.0.1:9876,127.0.0.2:9876",
        "unix:///run/namesrv.sock",
        "namesrv:///TopicTest",
        // What no URI has.
        "|\\^`{}<>\"",
        "",
    ];
    for (authority, stream) in authorities.into_iter().zip((1..).step_by(2)) {
        let frame = outcome(&mut raw, stream, &field(":authority", authority)).await;
        assert_eq!((frame.kind, &frame.payload[..]), (DATA, ANSWER), "{authority:?}");
    }
}

#[tokio::test]
async fn a_call_without_an_authority_is_served_with_a_host_or_without() {
    let served = Served::with(Limits::default());
    let mut raw = Raw::connect(served.address).await;
    for (target, stream) in [vec![], field("host", "127.0.0.1:9876,127.0.0.2:9876")].iter().zip([1, 3]) {
        let frame = outcome(&mut raw, stream, target).await;
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
