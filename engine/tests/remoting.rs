//! `RocketMQ`'s protocol: answers in the cache, requests that are known, bounds, and the ends of connections.

mod harness;

use std::time::Duration;

use bytes::Bytes;
use namesrv_engine::{Command, FrameAnswer, GoAway, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use harness::frames::{frame, own_header, request};
use harness::{LIST, LOOKUP, REGISTRATION, Served, until};

const PATIENCE: Duration = Duration::from_secs(20);

/// A client.
struct Client(TcpStream);

impl Client {
    async fn of(served: &Served) -> Self {
        Self(TcpStream::connect(served.remoting).await.expect("connects"))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("open");
    }

    /// The next frame; None if the connection has ended.
    async fn next(&mut self) -> Option<Bytes> {
        let read = async {
            let mut length = [0; 4];
            self.0.read_exact(&mut length).await.ok()?;
            let mut rest = vec![0; u32::from_be_bytes(length) as usize];
            self.0.read_exact(&mut rest).await.ok()?;
            Some(Bytes::from([&length[..], &rest].concat()))
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an answer or the end")
    }

    async fn ask(&mut self, bytes: &[u8]) -> Bytes {
        self.send(bytes).await;
        self.next().await.expect("open")
    }
}

/// The answer that the test gives to a request, as Python would.
fn told(request: &[u8]) -> Bytes {
    let header = 8 + u32::from_be_bytes([0, request[5], request[6], request[7]]) as usize;
    frame(request[4], &own_header(&request[8..header]), &request[header..])
}

/// Waits until Python has been notified of the ends of so many connections.
async fn until_left(served: &Served, connections: usize) {
    let left = || served.left.lock().expect("no panic").len();
    until(|| left() == connections, || format!("{} have left", left())).await;
}

fn lookup(opaque: u8) -> Bytes {
    request(LOOKUP, "a", i32::from(opaque), b"")
}

fn of_version(opaque: u8, version: i32) -> Bytes {
    let text = String::from_utf8_lossy(&lookup(opaque)[8..]).replace("513", &version.to_string());
    frame(0, text.as_bytes(), b"")
}

fn binary_lookup(opaque: u8) -> Bytes {
    frame(1, &[&[0, 105, 0, 2, 1, 0, 0, 0, opaque][..], &[0; 12]].concat(), b"")
}

#[tokio::test]
async fn a_lookup_is_answered_again_with_its_own_number_until_a_change() {
    for asked in [lookup, binary_lookup] {
        let served = Served::with(Limits::default());
        let mut client = Client::of(&served).await;
        assert_eq!(client.ask(&asked(1)).await, told(&asked(1)));
        served.until("cache_answers", 1).await;
        for opaque in [2, 100] {
            assert_eq!(client.ask(&asked(opaque)).await, told(&asked(opaque)));
        }
        assert_eq!(served.hits(), 2);
        served.engine.cache().change(["dependency"], None);
        assert_eq!(client.ask(&asked(3)).await, told(&asked(3)));
        assert_eq!(served.hits(), 2);
    }
}

#[tokio::test]
async fn a_registration_that_comes_again_is_known_over_its_connection_alone() {
    let served = Served::with(Limits::default());
    let (mut broker, mut other) = (Client::of(&served).await, Client::of(&served).await);
    let asked = |opaque| request(REGISTRATION, "a", opaque, b"{topics}");
    for (opaque, hits) in [(1, 0), (2, 1)] {
        assert_eq!(broker.ask(&asked(opaque)).await, told(&asked(opaque)));
        assert_eq!(served.hits(), hits);
    }
    assert_eq!(other.ask(&asked(3)).await, told(&asked(3)));
    let changed = request(REGISTRATION, "a", 4, b"{others}");
    assert_eq!(broker.ask(&changed).await, told(&changed));
    assert_eq!(served.hits(), 1, "neither came before");
}

#[tokio::test]
async fn the_end_of_a_connection_is_told_once_and_gives_all_back() {
    let served = Served::with(Limits::default());
    let mut client = Client::of(&served).await;
    client.send(&request(LIST, "a", 1, &vec![7; 100_000])).await;
    served.until("calls_under_way", 1).await;
    client.send(&request(LIST, "b", 2, &vec![7; 500_000])[..400_000]).await;
    served.until_at_least("request_bytes", 480_000).await;
    drop(client);
    until_left(&served, 1).await;
    for name in ["connections", "remoting_connections", "calls_under_way", "request_bytes", "waiting_bytes"] {
        served.until(name, 0).await;
    }
    let accepted = served.stat("accepted_connections");
    drop(Client::of(&served).await);
    served.until("accepted_connections", accepted + 1).await;
    served.until("connections", 0).await;
    assert_eq!(served.left.lock().expect("no panic").len(), 1, "Python knows nothing of one that asked nothing");
}

#[tokio::test]
async fn no_more_than_a_few_requests_of_a_connection_wait_for_python() {
    let served = Served::with(Limits::default());
    let (mut flooder, mut honest) = (Client::of(&served).await, Client::of(&served).await);
    flooder.send(&request(LIST, "a", 1, b"").repeat(100)).await;
    served.until("calls_under_way", 32).await;
    assert_eq!(honest.ask(&lookup(1)).await, told(&lookup(1)));
    assert_eq!(served.stat("calls_under_way"), 32);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_read_from_no_more() {
    let served = Served::with(Limits::default());
    let mut deaf = Client::of(&served).await;
    let asked = request(REGISTRATION, "a", 1, &vec![7; 1 << 20]);
    let sending = tokio::time::timeout(Duration::from_secs(3), async {
        for _ in 0..100 {
            deaf.send(&asked).await;
        }
    });
    sending.await.expect_err("it is read from for ever");
    assert!(served.stat("waiting_bytes") < 40 << 20, "{}", served.stat("waiting_bytes"));
    drop(deaf);
    served.until("waiting_bytes", 0).await;
}

#[tokio::test]
async fn what_is_no_frame_ends_its_connection_after_the_answers_before_it() {
    let served = Served::with(Limits::default());
    let mut client = Client::of(&served).await;
    client.send(&[&lookup(1)[..], b"GET / HTTP/1.1\r\n"].concat()).await;
    assert_eq!(client.next().await, Some(told(&lookup(1))));
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn a_drain_ends_connections_once_answered_and_tells_others_to_go_away() {
    let served = Served::with(Limits::default());
    let answers = [told(&lookup(0)), told(&binary_lookup(0))].map(|answer| FrameAnswer::of(answer).expect("a frame"));
    served.engine.set_go_away(GoAway { later_than: 475, answers: answers.into() });
    let mut client = Client::of(&served).await;
    client.send(&request(LIST, "a", 1, b"")).await;
    served.until("calls_under_way", 1).await;
    served.engine.stop(1);
    client.send(&[&lookup(7)[..], &of_version(8, 475), &binary_lookup(9)].concat()).await;
    assert_eq!(client.next().await, Some(told(&lookup(7))));
    assert_eq!(client.next().await, Some(told(&binary_lookup(9))));
    served.engine.command(2, Command::Answer(told(&lookup(1)))); // the connection has the number 1
    served.engine.flush();
    assert_eq!(client.next().await, Some(told(&lookup(1))));
    assert_eq!(client.next().await, None);
    assert_eq!(served.stat("asked_calls"), 1);
}

#[tokio::test]
async fn python_ends_a_connection_once_its_answers_have_left() {
    let served = Served::with(Limits::default());
    let mut client = Client::of(&served).await;
    assert_eq!(client.ask(&lookup(1)).await, told(&lookup(1)));
    served.engine.command(1, Command::Close);
    served.engine.flush();
    assert_eq!(client.next().await, None);
    until_left(&served, 1).await;
    assert_eq!(*served.left.lock().expect("no panic"), [1]);
}
