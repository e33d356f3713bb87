//! A connection's bytes, with TLS or without.

use std::io;

use tokio::io::{Empty, empty};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// What every connection of HTTP/2 begins with.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A socket. It is empty on its way from one runtime to another.
type Socket = Either<TcpStream, Empty>;

/// A connection, as HTTP/2 sees it: plain, or over TLS.
pub(crate) type Wire = Either<Socket, Box<TlsStream<Socket>>>;

/// A connection on its way to the thread that will serve it.
#[derive(Debug)]
pub(crate) struct MovingWire {
    wire: Wire,
    socket: std::net::TcpStream,
}

impl MovingWire {
    /// Takes a connection from the runtime that it belongs to.
    pub(crate) fn detach(mut wire: Wire) -> io::Result<Self> {
        match std::mem::replace(socket_of(&mut wire), Either::Right(empty())) {
            Either::Left(stream) => Ok(Self { wire, socket: stream.into_std()? }),
            Either::Right(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Gives it to the runtime of the current thread.
    pub(crate) fn attach(self) -> io::Result<Wire> {
        let Self { mut wire, socket } = self;
        *socket_of(&mut wire) = Either::Left(TcpStream::from_std(socket)?);
        Ok(wire)
    }
}

fn socket_of(wire: &mut Wire) -> &mut Socket {
    match wire {
        Wire::Left(socket) => socket,
        Wire::Right(stream) => stream.get_mut().0,
    }
}

/// The certificates that the client showed, its own first.
pub(crate) fn client_chain(wire: &Wire) -> &[CertificateDer<'static>] {
    match wire {
        Wire::Left(_) => &[],
        Wire::Right(stream) => stream.get_ref().1.peer_certificates().unwrap_or_default(),
    }
}
