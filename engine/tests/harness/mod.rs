//! An engine, with these tests instead of Python, and clients of it.
#![allow(dead_code)] // each test program needs some of it

pub mod frames;
pub mod raw;

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use namesrv_engine::cache::Answer;
use namesrv_engine::{
    CallInfo, Command, Door, Engine, Event, FrameAnswer, Kind, Limits, Method, Requests, Setup, Statuses, TlsMode,
    status_trailers,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

pub const KEPT: &str = "/a.B/Kept";
pub const STREAM: &str = "/a.B/Stream";
pub const SLOW: &str = "/a.B/Slow";
pub const AGAIN: &str = "/a.B/Again";
pub const JOINED: &str = "/a.B/Joined";
pub const LARGE: &str = "/a.B/Large";
/// Gets no answer, and is counted as reflection.
pub const REFLECTION: &str = "/a.B/Reflection";
/// Gets no answer, and is counted as health.
pub const HEALTH: &str = "/a.B/Health";
pub const NEVER: &[u8] = b"never";

/// Requests of `RocketMQ`'s protocol. Lookups are kept, registrations known by numbers, and lists get no answer.
pub const LOOKUP: i32 = 105;
pub const REGISTRATION: i32 = 103;
pub const LIST: i32 = 206;

/// Largest message of every method but `Large`, which takes twice as much.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The numbers of the methods of lookups, and of lists.
const LOOKUP_METHOD: u16 = 8;
const LIST_METHOD: u16 = 10;

/// What Python knows a call of `Again` by, once it was answered.
pub const NUMBER: u64 = 7;

/// Python's memory of open calls.
#[derive(Default)]
struct Memory {
    /// Messages sent in `Stream`.
    sent: HashMap<u64, u8>,
    /// Messages received in `Joined`.
    joined: HashMap<u64, Vec<u8>>,
    /// The answer to a registration that comes by its number.
    registered: Bytes,
}

/// Answers a request of `RocketMQ`'s protocol with its own frame.
fn decide_frame(engine: &Engine, call: &CallInfo, memory: &mut Memory) {
    let (Some(frame), Some(request)) = (&call.frame, call.request()) else { return };
    let answer: Bytes =
        frames::frame(frame.encoding, &frames::own_header(&request[..frame.header]), &request[frame.header..]);
    match call.known {
        Some(NUMBER) => return engine.answer_known([(call, memory.registered.clone())], Duration::from_millis(1)),
        _ if call.method == LIST_METHOD => return,
        _ => engine.command(call.id, Command::Answer(answer.clone())),
    }
    if call.method == LOOKUP_METHOD {
        engine.put(call, Answer::Frame(FrameAnswer::of(answer).expect("a frame")), ["dependency"], 0);
    } else {
        memory.registered = answer;
        engine.know(call, NUMBER);
    }
}

/// Handles events as Python would. False at the engine's end.
///
/// - `Kept`: answers with the request, and keeps that for callers of class 1.
/// - `Stream`: sends two messages.
/// - `Joined`: answers with all messages of the request.
/// - `Again`: answers a repeated call by its number, or refuses it if the request is `refuse`.
/// - `Large`: answers with the length of the request.
/// - Other methods get no answer.
fn decide(engine: &Engine, memory: &mut Memory, free: &Mutex<()>, left: &Mutex<Vec<u64>>) -> bool {
    let mut descriptor = [PollFd::from_borrowed_fd(engine.wakeup(), PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut descriptor, Some(&patience)).expect("polls");
    let _free = free.lock().expect("no test panicked");
    for event in engine.take() {
        if let Event::Call(call) = &event {
            if call.frame.is_some() {
                decide_frame(engine, call, memory);
                continue;
            }
        }
        let Memory { sent, joined, .. } = memory;
        match event {
            Event::Left(connection, _) => left.lock().expect("no test panicked").push(connection),
            Event::Call(call) if call.method == 0 => {
                let request = call.request().expect("no stream");
                engine.command(call.id, Command::Answer([b"header ", &request[..]].concat().into()));
                engine.set_class(&call, 1);
                engine.put(&call, Answer::Message(request), ["dependency"], 0);
            }
            Event::Call(call) if call.method == 1 => {
                sent.insert(call.id, 1);
                call.release_request();
                engine.command(call.id, Command::Write(Bytes::from_static(b"first"), 1));
            }
            Event::Call(call) if call.method == 4 => match call.known {
                None => {
                    engine.command(call.id, Command::Answer(Bytes::from_static(b"first")));
                    engine.know(&call, NUMBER);
                }
                Some(_) if call.request().as_deref() == Some(b"refuse") => {
                    engine.command(call.id, Command::Finish(status_trailers(5, "gone")));
                }
                Some(number) => {
                    let answer = format!("again {number}").into();
                    engine.answer_known([(&*call, answer)], Duration::from_millis(1));
                }
            },
            Event::Call(call) if call.method == 5 => {
                joined.insert(call.id, Vec::new());
                engine.command(call.id, Command::Read);
            }
            Event::Call(call) if call.method == 6 => {
                let length = call.request().expect("no stream").len();
                engine.command(call.id, Command::Answer(length.to_string().into()));
            }
            Event::Message(id, Some(message)) => {
                joined.entry(id).or_default().extend_from_slice(&message.bytes);
                engine.command(id, Command::Read);
            }
            Event::Message(id, None) => {
                engine.command(id, Command::Answer(joined.remove(&id).unwrap_or_default().into()));
            }
            Event::Writable(id) => {
                if sent.insert(id, 2) == Some(1) {
                    engine.command(id, Command::Write(Bytes::from_static(b"second"), 1));
                } else {
                    engine.command(id, Command::Finish(status_trailers(0, "")));
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
    /// While this is locked, Python is busy with something else.
    pub busy: Arc<Mutex<()>>,
    /// Where `RocketMQ`'s protocol is spoken.
    pub remoting: SocketAddr,
    /// The connections there that have ended, as Python was notified.
    pub left: Arc<Mutex<Vec<u64>>>,
    python: Option<JoinHandle<()>>,
}

impl Served {
    /// An engine that counts each loopback address by itself.
    pub fn with_addresses(mut limits: Limits) -> Self {
        limits.trust_loopback = false;
        Self::with(limits)
    }

    pub fn with(limits: Limits) -> Self {
        Self::new(limits, false, None)
    }

    /// An engine whose callers need permits, which all have.
    pub fn with_permits(limits: Limits) -> Self {
        Self::new(limits, true, None)
    }

    /// An engine that talks TLS with this certificate.
    pub fn with_tls(limits: Limits, certificate: &Certificate) -> Self {
        Self::new(limits, false, Some((certificate, None)))
    }

    /// An engine that talks TLS with this certificate, to clients that show one of these. Callers may need permits, which they have.
    pub fn with_client_certificates(certificate: &Certificate, clients: &[&Certificate], permits: bool) -> Self {
        Self::new(Limits::default(), permits, Some((certificate, Some(authorities(clients)))))
    }

    /// Has the engine accept clients with these certificates alone.
    pub fn accept_clients(&self, certificate: &Certificate, clients: &[&Certificate]) {
        let Certificate { pem, key } = certificate;
        let authorities = authorities(clients);
        self.engine.set_tls(pem.as_bytes(), key.as_bytes(), Some(authorities.as_bytes())).expect("they fit");
    }

    fn new(limits: Limits, permits: bool, tls: Option<(&Certificate, Option<String>)>) -> Self {
        let method = |path: &str| Method {
            path: path.into(),
            streams_in: path == JOINED,
            cached: path == KEPT,
            max_message: if path == LARGE { 2 * MAX_MESSAGE } else { MAX_MESSAGE },
            counted_as: match path {
                HEALTH => Kind::HealthCalls,
                REFLECTION => Kind::ReflectionCalls,
                _ => Kind::Calls,
            },
            ..Method::default()
        };
        let mut methods = [KEPT, STREAM, SLOW, REFLECTION, AGAIN, JOINED, LARGE, HEALTH].map(method).to_vec();
        methods.extend([(Some(LOOKUP), true, false), (Some(REGISTRATION), false, true), (None, false, false)].map(
            |(code, cached, may_be_known)| {
                let requests = Some(Requests { code, may_be_known });
                Method { cached, requests, ..Method::default() }
            },
        ));
        let explanation = |text: &str| (text.to_owned(), b"details".to_vec(), Some(1000));
        let setup = Setup {
            limits,
            methods,
            threads: 1,
            permits,
            follows_traces: true,
            statuses: Statuses::new(
                [(); 4].map(|()| explanation("no room")),
                [
                    "calls of one address",
                    "health calls of one address",
                    "reflection calls of one address",
                    "bytes of one address",
                ]
                .map(explanation),
                explanation("no longer accepted"),
            ),
        };
        let engine = Arc::new(Engine::new(setup).expect("descriptors"));
        if let Some((Certificate { pem, key }, clients)) = tls {
            let clients = clients.as_ref().map(String::as_bytes);
            engine.set_tls(pem.as_bytes(), key.as_bytes(), clients).expect("they fit");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        set_socket_send_buffer_size(&listener, 16 << 10).expect("a size"); // what is not read soon waits in the engine
        let address = listener.local_addr().expect("bound");
        engine.listen(listener.into(), Door::Grpc).expect("a listener");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let remoting = listener.local_addr().expect("bound");
        engine.listen(listener.into(), Door::Remoting(TlsMode::Permissive)).expect("a listener");
        engine.cache().change([""; 0], Some(Bytes::from_static(b"header ")));
        engine.start().expect("threads");
        let busy = Arc::new(Mutex::new(()));
        let left: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (python, free, told) = (Arc::clone(&engine), Arc::clone(&busy), Arc::clone(&left));
        let python = std::thread::spawn(move || {
            let mut memory = Memory::default();
            while decide(&python, &mut memory, &free, &told) {}
        });
        Self { engine, address, busy, remoting, left, python: Some(python) }
    }

    pub async fn connect(&self) -> SendRequest<Bytes> {
        let socket = tokio::net::TcpStream::connect(self.address).await.expect("connects");
        greet(socket).await
    }

    /// Connects with TLS, to a server that has this certificate. Shows one of its own, if there is one.
    pub async fn connect_as(&self, certificate: &Certificate, client: Option<&Certificate>) -> SendRequest<Bytes> {
        greet(self.shake_hands(&certificate.connector(client, 1)).await).await
    }

    /// A connection of TLS of a client, which may have had others before.
    pub async fn shake_hands(&self, connector: &TlsConnector) -> TlsStream<tokio::net::TcpStream> {
        let socket = tokio::net::TcpStream::connect(self.address).await.expect("connects");
        let name = ServerName::try_from("localhost").expect("a name");
        connector.connect(name, socket).await.expect("shakes hands")
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.engine.stats().into_iter().find(|(known, _)| *known == name).expect("known").1
    }

    /// Waits until a gauge has a value.
    pub async fn until(&self, name: &str, value: u64) {
        self.until_is(name, value, |now| now == value).await;
    }

    /// Waits until a gauge has a value or a greater one.
    pub async fn until_at_least(&self, name: &str, value: u64) {
        self.until_is(name, value, |now| now >= value).await;
    }

    /// Waits until a gauge has an accepted value, such as this one.
    pub async fn until_is(&self, name: &str, value: u64, accepted: impl Fn(u64) -> bool) {
        until(|| accepted(self.stat(name)), || format!("{name} is {}, not {value}", self.stat(name))).await;
    }

    pub fn hits(&self) -> u64 {
        self.engine.hits().iter().map(|(found, absent, _)| found + absent).sum()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.engine.stop(3);
        self.engine.join();
        drop(self.python.take().map(JoinHandle::join));
    }
}

/// Waits until something is so. Panics with what is not.
pub async fn until(condition: impl Fn() -> bool, problem: impl Fn() -> String) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{}", problem()));
}

/// A client that speaks HTTP/2 over a connection.
pub async fn greet(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(socket).await.expect("shakes hands");
    tokio::spawn(async move { drop(connection.await) });
    client.ready().await.expect("ready")
}

/// A certificate of `localhost`, which is its own authority.
pub struct Certificate {
    pem: String,
    key: String,
}

impl Certificate {
    pub fn new() -> Self {
        Self::with_names(0)
    }

    /// A certificate with so many further names of a hundred bytes each.
    pub fn with_names(more: usize) -> Self {
        let further = (0..more).map(|number| format!("{}{number:0>50}", "a.".repeat(25)));
        let names: Vec<_> = std::iter::once("localhost".to_owned()).chain(further).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("makes one");
        Self { pem: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    /// Connects to servers that have it, and shows them another one so many times.
    pub fn connector(&self, shown: Option<&Certificate>, times: usize) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = builder.with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![shown.der(); times], key).expect("they fit")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("PEM")
    }
}

fn authorities(certificates: &[&Certificate]) -> String {
    certificates.iter().map(|certificate| certificate.pem.as_str()).collect()
}

/// All that a call brings: the bytes of its messages, and its status.
pub async fn call(client: &mut SendRequest<Bytes>, path: &str, message: &[u8], timeout: &str) -> (Bytes, String) {
    call_with(client, path, framed(0, message), timeout, &[]).await
}

/// The same with a body of messages and further headers.
pub async fn call_with(
    client: &mut SendRequest<Bytes>,
    path: &str,
    messages: Vec<u8>,
    timeout: &str,
    headers: &[(&str, &str)],
) -> (Bytes, String) {
    let mut request = Request::post(format!("http://here{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (response, mut body) = client.send_request(request.body(()).expect("valid"), false).expect("sends");
    body.send_data(messages.into(), true).expect("sends");
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

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// A message as it travels; with flag 1, a compressed one.
pub fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[flag][..], &length, message].concat()
}
