//! A connection's bytes, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;

/// What every connection of HTTP/2 begins with.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A socket. The accepting thread makes it and hands it to a worker's runtime.
#[derive(Debug)]
pub(crate) enum Socket {
    Open(TcpStream),
    /// It is on its way from one runtime to another.
    Moving,
}

impl Socket {
    /// Its first byte, which stays to be read; None if it ends without one.
    pub(crate) async fn peek(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        match self {
            Self::Open(stream) => Ok((stream.peek(&mut byte).await? > 0).then_some(byte[0])),
            Self::Moving => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Takes it from its runtime.
    fn detach(&mut self) -> io::Result<std::net::TcpStream> {
        match std::mem::replace(self, Self::Moving) {
            Self::Open(stream) => stream.into_std(),
            Self::Moving => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// A connection, as HTTP/2 sees it.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// A connection on its way to the thread that will serve it.
#[derive(Debug)]
pub(crate) struct MovingWire {
    wire: Wire,
    socket: std::net::TcpStream,
}

impl Wire {
    /// Takes it from the runtime that it belongs to.
    pub(crate) fn detach(mut self) -> io::Result<MovingWire> {
        let socket = self.socket().detach()?;
        Ok(MovingWire { wire: self, socket })
    }

    /// The certificates that the client showed, its own first.
    pub(crate) fn client_chain(&self) -> &[CertificateDer<'static>] {
        match self {
            Self::Plain(_) => &[],
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().unwrap_or_default(),
        }
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_mut().0,
        }
    }
}

impl MovingWire {
    /// Gives it to the runtime of the current thread.
    pub(crate) fn attach(self) -> io::Result<Wire> {
        let Self { mut wire, socket } = self;
        *wire.socket() = Socket::Open(TcpStream::from_std(socket)?);
        Ok(wire)
    }
}

fn moving<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Open(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Moving => moving(),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Open(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Moving => moving(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Open(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Moving => moving(),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Moving => moving(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
