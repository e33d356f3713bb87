//! An engine, with these tests in Python's place, and clients of it.
#![allow(dead_code)] // each test program needs some of it

pub mod raw;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use namesrv_engine::cache::Answer;
use namesrv_engine::{Clock, Command, Engine, Event, Limits, Method, Overloaded, Setup, status_trailers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

pub const KEPT: &str = "/a.B/Kept";
pub const STREAM: &str = "/a.B/Stream";
pub const SLOW: &str = "/a.B/Slow";
pub const HOLDING: &str = "/a.B/Holding";
pub const AGAIN: &str = "/a.B/Again";
pub const NEVER: &[u8] = b"never";

/// What Python knows a call of `Again` by, once it was answered.
pub const NUMBER: u64 = 7;

/// What Python would do: answers `Kept` with the request, and keeps that; sends two messages in `Stream`; answers `Again`
/// by its number when it comes again, and refuses it then if it is `refuse`; leaves the others.
fn decide(engine: &Engine, sent: &mut HashMap<u64, u8>, free: &Mutex<()>) -> bool {
    let mut descriptor = [PollFd::from_borrowed_fd(engine.wakeup(), PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut descriptor, Some(&patience)).expect("polls");
    let _free = free.lock().expect("no test panicked");
    for event in engine.take() {
        match event {
            Event::Call(call) if call.method == 0 => {
                let request = call.request.clone().expect("no stream");
                engine.command(call.id, Command::Answer([b"header ", &request[..]].concat().into()));
                engine.put(&call, Answer::Message(request), ["tag"], 0);
            }
            Event::Call(call) if call.method == 1 => {
                sent.insert(call.id, 1);
                engine.command(call.id, Command::Write(Bytes::from_static(b"first")));
            }
            Event::Call(call) if call.method == 4 => match call.known {
                None => {
                    engine.command(call.id, Command::Answer(Bytes::from_static(b"first")));
                    engine.know(&call, NUMBER);
                }
                Some(_) if call.request.as_deref() == Some(b"refuse") => {
                    engine.command(call.id, Command::Finish { trailers: status_trailers(5, "gone"), cut: false });
                }
                Some(number) => {
                    let answer = format!("again {number}").into();
                    engine.answer_known([(&*call, answer)], Duration::from_millis(1));
                }
            },
            Event::Writable(id) => {
                if sent.insert(id, 2) == Some(1) {
                    engine.command(id, Command::Write(Bytes::from_static(b"second")));
                } else {
                    engine.command(id, Command::Finish { trailers: status_trailers(0, ""), cut: false });
                }
            }
            Event::Stopped => return false,
            _ => {}
        }
    }
    engine.flush();
    true
}

pub struct Served {
    pub engine: Arc<Engine>,
    pub address: SocketAddr,
    /// The engine's clock, which a test may move forward.
    pub clock: Clock,
    /// While this is locked, Python is busy with something else.
    pub busy: Arc<Mutex<()>>,
    python: Option<JoinHandle<()>>,
}

impl Served {
    pub fn with(limits: Limits) -> Self {
        let method = |path: &str| Method {
            path: path.into(),
            streams_in: false,
            cached: path == KEPT,
            holds_connection: path == HOLDING,
        };
        let methods = vec![method(KEPT), method(STREAM), method(SLOW), method(HOLDING), method(AGAIN)];
        let overloaded = Overloaded { text: "no room".into(), details: Bytes::from_static(b"details") };
        let clock = Clock::default();
        let setup = Setup { limits, methods, threads: 1, permits: false, overloaded, clock: clock.clone() };
        let engine = Arc::new(Engine::new(setup).expect("descriptors"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        engine.listen(listener.into()).expect("a listener");
        engine.cache().change([""; 0], Some(Bytes::from_static(b"header ")));
        engine.start().expect("threads");
        let busy = Arc::new(Mutex::new(()));
        let (python, free) = (Arc::clone(&engine), Arc::clone(&busy));
        let python = std::thread::spawn(move || {
            let mut sent = HashMap::new();
            while decide(&python, &mut sent, &free) {}
        });
        Self { engine, address, clock, busy, python: Some(python) }
    }

    pub async fn connect(&self) -> SendRequest<Bytes> {
        let socket = tokio::net::TcpStream::connect(self.address).await.expect("connects");
        let (client, connection) = h2::client::handshake(socket).await.expect("shakes hands");
        tokio::spawn(async move { drop(connection.await) });
        client.ready().await.expect("ready")
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.engine.stats().into_iter().find(|(known, _)| *known == name).expect("known").1
    }

    /// Waits until a gauge has a value.
    pub async fn until(&self, name: &str, value: u64) {
        let reached = async {
            while self.stat(name) != value {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{name} is {}, not {value}", self.stat(name)));
    }

    pub fn hits(&self) -> u64 {
        self.engine.hits().0.iter().map(|(_, _, count)| count).sum()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.engine.stop(3);
        self.engine.join();
        drop(self.python.take().map(JoinHandle::join));
    }
}

/// All that a call brings: the bytes of its messages, and its status.
pub async fn call(client: &mut SendRequest<Bytes>, path: &str, message: &[u8], timeout: &str) -> (Bytes, String) {
    let request = Request::post(format!("http://here{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout);
    let (response, mut body) = client.send_request(request.body(()).expect("valid"), false).expect("sends");
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    body.send_data([&[0][..], &length, message].concat().into(), true).expect("sends");
    let response = response.await.expect("answers");
    let status =
        |fields: &HeaderMap| fields.get("grpc-status").map(|value| value.to_str().expect("a number").to_owned());
    if let Some(status) = status(response.headers()) {
        return (Bytes::new(), status);
    }
    let (mut all, mut body) = (BytesMut::new(), response.into_body());
    while let Some(chunk) = body.data().await {
        all.extend_from_slice(&chunk.expect("comes"));
    }
    let trailers = body.trailers().await.expect("come").expect("are there");
    (all.freeze(), status(&trailers).expect("a status"))
}
