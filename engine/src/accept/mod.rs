//! The accepting thread: accepts connections, limits them, and does their TLS handshakes before a worker gets them.
//!
//! A handshake costs as much as a hundred lookups, so that a flood of them must not take the time of those who are in. Here it
//! takes a thread of its own, and the system shares the processor between the two. Addresses share the time of that thread.

pub(crate) mod mistakes;
pub(crate) mod proxy;
pub(crate) mod rates;
pub(crate) mod tls;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::either::Either;

use crate::accept::mistakes::{Carrier, Mistake, begins_tls, of_handshake};
use crate::accept::rates::Rates;
use crate::accept::tls::ALPN;
use crate::ledger::{Hold, Kind, Over};
use crate::peer::{Owner, Peer, site_of};
use crate::remoting::patience::IDLE;
use crate::scheduler::Scheduler;
use crate::shared::{Shared, Stage};
use crate::wire::{MovingWire, Wire};

/// Handshakes of TLS a second from one address. They take a tenth of a processor.
const MAX_HANDSHAKE_RATE: u32 = 100;

/// Handshakes beyond the rate that one address may begin: a fleet behind it returns at once.
const HANDSHAKE_BURST: Duration = Duration::from_secs(100);

/// Connections beyond the rate that one address may open.
const CONNECTION_BURST: Duration = Duration::from_secs(10);

/// Pause after a failure to accept: without descriptors or memory another try would fail at once.
const PAUSE: Duration = Duration::from_millis(20);

/// Most bytes that TLS keeps for a client that does not read, a record. Only the connection itself counts them.
const TLS_BUFFER: usize = 16 << 10;

/// What is spoken at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// gRPC, over TLS once there are certificates.
    Grpc,
    /// `RocketMQ`'s protocol.
    Remoting(TlsMode),
}

/// Whether `RocketMQ`'s protocol is spoken over TLS (`RocketMQ`: `TlsMode`). The first byte of a connection tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Disabled,
    /// If the client wants it.
    Permissive,
    /// Always.
    Enforcing,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) wire: MovingWire,
    pub(crate) peer: Peer,
    /// Its slot among the connections.
    pub(crate) place: Hold,
    pub(crate) carrier: Carrier,
    pub(crate) door: Door,
}

/// A listening socket that somebody else has bound. Fails if the socket is not one of TCP.
pub(crate) fn listener_of(socket: OwnedFd) -> std::io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, getsockname};
    let family = getsockname(&socket)?.address_family();
    if ![AddressFamily::INET, AddressFamily::INET6].contains(&family) {
        return Err(std::io::Error::other(format!("a listener of family {} is not known", family.as_raw())));
    }
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What the acceptor needs, once for all listeners.
struct Acceptor {
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Accepted>>,
    next: RefCell<usize>,
    connection_rates: RefCell<Rates>,
    handshake_rates: RefCell<Rates>,
    /// Shares the time of the thread between the owners of handshakes.
    scheduler: Rc<Scheduler>,
}

/// Accepts until the engine drains. Fails, in words, if a listener cannot be used, or ended.
pub(crate) fn run(
    shared: Arc<Shared>,
    listeners: Vec<(std::net::TcpListener, Door)>,
    workers: Vec<UnboundedSender<Accepted>>,
) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let acceptor = Rc::new(Acceptor::new(shared, workers));
    let scheduler = Rc::clone(&acceptor.scheduler);
    LocalSet::new().block_on(&runtime, scheduler.drive(acceptor.accept_all(listeners)))
}

impl Acceptor {
    fn new(shared: Arc<Shared>, workers: Vec<UnboundedSender<Accepted>>) -> Self {
        let now = Instant::now();
        let connection_rates = RefCell::new(Rates::new(shared.limits.max_connection_rate, CONNECTION_BURST, now));
        let handshake_rates = RefCell::new(Rates::new(MAX_HANDSHAKE_RATE, HANDSHAKE_BURST, now));
        let (next, scheduler) = (RefCell::new(0), Scheduler::of_thread());
        Self { shared, workers, next, connection_rates, handshake_rates, scheduler }
    }

    async fn accept_all(self: Rc<Self>, listeners: Vec<(std::net::TcpListener, Door)>) -> Result<(), String> {
        let mut accepting = JoinSet::new();
        for (listener, door) in listeners {
            let open =
                TcpListener::from_std(listener).map_err(|error| format!("a listener cannot be used: {error}"))?;
            accepting.spawn_local(Rc::clone(&self).accept(open, door));
        }
        while self.shared.stage() < Stage::Draining {
            tokio::select! {
                () = self.shared.next_stage.notified() => {}
                Some(ended) = accepting.join_next() => return Err(format!("a listener ended: {ended:?}")),
            }
        }
        Ok(())
    }

    async fn accept(self: Rc<Self>, listener: TcpListener, door: Door) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => self.let_in(stream, address, door),
                Err(error) => {
                    self.shared.notices.tell("accept_failed", "", &format!("no connection can be accepted: {error}"));
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn let_in(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, door: Door) {
        let proxies = &self.shared.limits.proxies;
        if door != Door::Grpc && proxies.iter().any(|network| network.contains(address.ip())) {
            drop(spawn_local(Rc::clone(self).let_in_forwarded(stream, address, door)));
        } else {
            self.let_in_from(stream, address, door);
        }
    }

    /// Lets in a connection that a proxy forwards, as one of its client.
    async fn let_in_forwarded(self: Rc<Self>, mut stream: TcpStream, proxy: SocketAddr, door: Door) {
        let Some((peer, place)) = self.place_of(proxy, door) else { return };
        let Ok(Ok(source)) = timeout(self.shared.limits.handshake_timeout, proxy::read(&mut stream)).await else {
            return self.refuse("proxy_preamble_missing", &peer, "a proxy sends no preamble of the PROXY protocol");
        };
        drop(place);
        // A client on the proxy's machine is no program of this machine.
        let client = source.filter(|source| !source.ip().to_canonical().is_loopback() || proxy.ip().is_loopback());
        self.let_in_from(stream, client.unwrap_or(proxy), door);
    }

    fn let_in_from(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, door: Door) {
        let Some((mut peer, place)) = self.place_of(address, door) else { return };
        let site = site_of(address.ip());
        if !self.connection_rates.borrow_mut().admit(site, Instant::now()) {
            let rate = self.shared.limits.max_connection_rate;
            let text = format!("more than {rate} new connections a second; some are closed");
            return self.refuse("connections_too_fast", &peer, &text);
        }
        self.shared.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true); // without it a lookup is slow, not wrong
        if door != Door::Grpc {
            keep_alive(&stream);
        }
        peer.authorities_generation = self.shared.authorities_generation(); // before its certificates are looked at
        match self.shared.tls().filter(|_| door != Door::Remoting(TlsMode::Disabled)) {
            None => self.hand_on(plain(stream), peer, place, Carrier::Plain, door),
            Some(tls) => drop(spawn_local(Rc::clone(self).shake_hands(tls.config, stream, (peer, site), place, door))),
        }
    }

    /// Does the handshake of a client that begins one. To any other client, the worker answers.
    async fn shake_hands(
        self: Rc<Self>,
        config: Arc<ServerConfig>,
        stream: TcpStream,
        (mut peer, site): (Peer, u64),
        place: Hold,
        door: Door,
    ) {
        let mut byte = [0];
        if door == Door::Remoting(TlsMode::Permissive) {
            if timeout(IDLE, stream.peek(&mut byte)).await.is_err() {
                return;
            }
            if !begins_tls(byte[0]) {
                return self.hand_on(plain(stream), peer, place, Carrier::Plain, door);
            }
        }
        if !self.handshake_rates.borrow_mut().admit(site, Instant::now()) {
            let text = format!("more than {MAX_HANDSHAKE_RATE} handshakes of TLS a second; some are closed");
            return self.refuse("handshakes_too_fast", &peer, &text);
        }
        let Ok(_handshake) = peer.account.hold(Kind::Handshakes, 1) else {
            return self.refuse("too_many_handshakes", &peer, "too many handshakes of TLS at once; some are closed");
        };
        let deadline = Instant::now() + self.shared.limits.handshake_timeout;
        match timeout_at(deadline, stream.peek(&mut byte)).await {
            Ok(Ok(1)) if begins_tls(byte[0]) => {}
            Ok(Ok(1)) => return self.hand_on(plain(stream), peer, place, Carrier::TlsMissing, door),
            Ok(_) => return, // it closes the connection without a byte, as probes of open ports do
            Err(_) => return self.timed_out(&peer),
        }
        let mut slice = self.scheduler.of(peer.account.owner);
        match slice.run(timeout_at(deadline, TlsAcceptor::from(config).accept(Either::Left(stream)))).await {
            Err(_) => self.timed_out(&peer),
            Ok(Err(error)) => of_handshake(&error).refuse(&peer, &self.shared),
            Ok(Ok(mut stream)) => {
                stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
                let session = stream.get_ref().1;
                let carrier =
                    if session.alpn_protocol() == Some(ALPN) { Carrier::Tls } else { Carrier::TlsWithoutAlpn };
                if let Err(problem) = peer.shows(session.peer_certificates().unwrap_or_default()) {
                    return self.refuse("client_certificate_refused", &peer, &problem);
                }
                self.hand_on(Wire::Right(Box::new(stream)), peer, place, carrier, door);
            }
        }
    }

    fn hand_on(&self, wire: Wire, peer: Peer, place: Hold, carrier: Carrier, door: Door) {
        let Ok(wire) = MovingWire::detach(wire) else { return };
        let mut next = self.next.borrow_mut();
        *next = (*next + 1) % self.workers.len();
        // A thread that has ended takes nobody; the connection closes.
        let _ = self.workers[*next].send(Accepted { wire, peer, place, carrier, door });
    }

    /// A slot among the connections for a peer. Refuses the peer if there is no slot.
    fn place_of(&self, address: SocketAddr, door: Door) -> Option<(Peer, Hold)> {
        let account = self.shared.ledger.account(Owner::of(address, self.shared.limits.trust_loopback));
        let peer = Peer::of(address, account, door);
        let (kind, text) = match peer.account.hold(Kind::Connections, 1) {
            Ok(place) => return Some((peer, place)),
            Err(Over::InAll(most)) => {
                let text = format!("{most} connections are open, which is all there may be; further ones are closed");
                ("too_many_connections", text)
            }
            Err(Over::OfAddress(most)) => {
                self.shared.counts.refused_of_address.fetch_add(1, Ordering::Relaxed);
                let text = format!(
                    "its address has {most} connections, which is all that one may have (caller_share_percent of \
                     max_connections); further ones are closed"
                );
                ("too_many_connections_of_address", text)
            }
        };
        self.refuse(kind, &peer, &text);
        None
    }

    fn refuse(&self, kind: &'static str, peer: &Peer, text: &str) {
        Mistake::new(kind, text).refuse(peer, &self.shared);
    }

    fn timed_out(&self, peer: &Peer) {
        self.refuse("handshake_timed_out", peer, "the client does not get on with its handshake of TLS");
    }
}

/// Has the system notice within a minute that a client's machine is down: clients of `RocketMQ` are silent for two.
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
    let set = set_socket_keepalive(stream, true)
        .and_then(|()| set_tcp_keepidle(stream, Duration::from_secs(30)))
        .and_then(|()| set_tcp_keepintvl(stream, Duration::from_secs(10)))
        .and_then(|()| set_tcp_keepcnt(stream, 3));
    let _ = set; // without it the end is noticed later
}

fn plain(stream: TcpStream) -> Wire {
    Wire::Left(Either::Left(stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::tls::listener_tls;
    use crate::bridge::Event;
    use crate::limits::Limits;
    use std::io::{self, Write};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::task::yield_now;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

    fn acceptor(limits: Limits) -> (Rc<Acceptor>, UnboundedReceiver<Accepted>) {
        let shared = Shared::of(limits, Vec::new());
        let (sender, accepted) = unbounded_channel();
        (Rc::new(Acceptor::new(shared, vec![sender])), accepted)
    }

    #[tokio::test]
    async fn beyond_the_connections_of_an_address_one_more_is_closed_counted_and_told() {
        let limits = Limits { max_connections: 10, caller_percent: 20, kept_percent: 0, ..Limits::default() };
        let (acceptor, mut accepted) = acceptor(limits);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut clients = Vec::new();
        for from in ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:1", "127.0.0.1:1"] {
            clients.push(TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects"));
            let (stream, _) = listener.accept().await.expect("accepts");
            acceptor.let_in(stream, from.parse().expect("an address"), Door::Grpc);
        }
        let mut there = Vec::new();
        while let Ok(arrived) = accepted.try_recv() {
            there.push(arrived);
        }
        let peers: Vec<_> = there.iter().map(|arrived| arrived.peer.address.as_str()).collect();
        assert_eq!(peers, ["ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.2:1", "ipv4:127.0.0.1:1"]);
        assert_eq!(acceptor.shared.counts.refused_of_address.load(Ordering::Relaxed), 1);
        assert_eq!(acceptor.shared.counts.refused_connections.load(Ordering::Relaxed), 1);
        assert_eq!(clients[2].read_u8().await.expect_err("closed").kind(), io::ErrorKind::UnexpectedEof);
        let told = acceptor.shared.bridge.take(9);
        let [Event::Notice(notice)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((notice.kind, notice.peer.as_str()), ("too_many_connections_of_address", "ipv4:10.0.0.1:3"));
        drop(there);
        assert_eq!(acceptor.shared.ledger.held(Kind::Connections), 0);
    }

    /// A listener of TLS, and what its clients need.
    fn with_tls(acceptor: &Acceptor) -> Arc<ClientConfig> {
        let (certificate, key) = crate::accept::tls::tests::pair();
        acceptor.shared.set_tls(listener_tls(certificate.as_bytes(), key.as_bytes(), None).expect("they fit"));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")).expect("a certificate");
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Arc::new(config)
    }

    #[test]
    fn a_handshake_waits_for_a_few_of_another_address_and_not_for_all() {
        let runtime = Builder::new_current_thread().enable_all().build().expect("descriptors");
        let (acceptor, handed_on) = acceptor(Limits::default());
        let scheduler = Rc::clone(&acceptor.scheduler);
        LocalSet::new().block_on(&runtime, scheduler.drive(waits_for_a_few(acceptor, handed_on)));
    }

    async fn waits_for_a_few(acceptor: Rc<Acceptor>, mut handed_on: UnboundedReceiver<Accepted>) {
        let config = with_tls(&acceptor);
        let name = ServerName::try_from("localhost").expect("a name");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let connect = async || {
            let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
            (client, listener.accept().await.expect("accepts").0)
        };
        let (mut flood, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let (mut client, stream) = connect().await;
            let mut tls = ClientConnection::new(Arc::clone(&config), name.clone()).expect("a name");
            let mut hello = Vec::new();
            tls.write_tls(&mut hello).expect("memory");
            client.write_all(&hello).await.expect("room");
            flood.push(client);
            accepted.push((stream, "10.0.0.1:1"));
        }
        let (honest, stream) = connect().await;
        accepted.push((stream, "10.0.0.2:1"));
        for (stream, from) in accepted {
            acceptor.let_in(stream, from.parse().expect("an address"), Door::Grpc);
        }
        let shaken = spawn_local(tokio_rustls::TlsConnector::from(config).connect(name, honest));
        while !shaken.is_finished() {
            yield_now().await;
        }
        shaken.await.expect("ends").expect("shakes hands");
        let answered = flood.iter().filter(|client| client.try_read(&mut [0]).is_ok_and(|read| read > 0)).count();
        assert!(answered < 10, "{answered}");
        let wire = handed_on.recv().await.expect("the honest one").wire.attach().expect("open");
        assert_eq!(acceptor.shared.ledger.held(Kind::Handshakes), 100, "those of the other address");
        let Wire::Right(mut stream) = wire else { panic!("no TLS") };
        let taken = stream.get_mut().1.writer().write(&vec![7; 1 << 20]).expect("room");
        assert!(taken <= TLS_BUFFER, "{taken} bytes wait for a client that does not read");
    }

    #[test]
    fn an_address_may_begin_as_many_handshakes_as_a_fleet_and_then_so_many_a_second() {
        let (now, site) = (Instant::now(), 1);
        let mut rates = Rates::new(MAX_HANDSHAKE_RATE, HANDSHAKE_BURST, now);
        let mut begun = |at| (0..20_000).filter(|_| rates.admit(site, at)).count();
        assert_eq!(begun(now), 10_000);
        assert_eq!(begun(now + Duration::from_secs(1)), 100);
    }
}
