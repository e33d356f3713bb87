//! A client that sends frames by hand, because no library would send these.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Codes of errors (RFC 9113, 7).
pub const PROTOCOL_ERROR: u32 = 1;
pub const REFUSED_STREAM: u32 = 7;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The code of a reset that cancels a call.
pub const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame as it arrived.
#[derive(Debug, Clone)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The code of a GOAWAY or of an `RST_STREAM`.
    pub fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field that is not indexed.
pub fn field(name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    let text = |text: &[u8]| {
        let mut length = text.len().saturating_sub(127);
        let mut raw = vec![u8::try_from(text.len().min(127)).expect("a byte")];
        if text.len() >= 127 {
            while length >= 128 {
                raw.push(u8::try_from(length % 128 + 128).expect("a byte"));
                length /= 128;
            }
            raw.push(u8::try_from(length).expect("a byte"));
        }
        [&raw, text].concat()
    };
    [vec![0], text(name.as_bytes()), text(value.as_ref())].concat()
}

/// A block of fields without an index.
pub fn block(path: &str, timeout: &str) -> Vec<u8> {
    block_for(&field(":authority", "here"), path, timeout)
}

/// The same, with this field instead of the authority's.
pub fn block_for(target: &[u8], path: &str, timeout: &str) -> Vec<u8> {
    let fields =
        |fields: &[(&str, &str)]| fields.iter().flat_map(|(name, value)| field(name, value)).collect::<Vec<u8>>();
    let pseudo = fields(&[(":method", "POST"), (":scheme", "http"), (":path", path)]);
    let rest = fields(&[("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", timeout)]);
    [&pseudo, target, &rest].concat()
}

/// The block of a request that is not gRPC.
pub fn foreign() -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("content-type", "text/plain")];
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// A connection.
pub struct Raw(TcpStream);

impl Raw {
    /// Connects and greets.
    pub async fn connect(address: SocketAddr) -> Self {
        Self::with(address, &[]).await
    }

    /// Connects and greets with these settings.
    pub async fn with(address: SocketAddr, settings: &[u8]) -> Self {
        Self::silent(address).await.greet(settings).await
    }

    /// Greets with these settings.
    pub async fn greet(mut self, settings: &[u8]) -> Self {
        self.bytes(PREFACE).await;
        self.send(SETTINGS, 0, 0, settings).await;
        self
    }

    /// Connects, and says nothing.
    pub async fn silent(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("connects"))
    }

    /// The same from this address.
    pub async fn silent_from(from: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("descriptors");
        socket.bind((from, 0).into()).expect("a loopback address");
        Self(socket.connect(address).await.expect("connects"))
    }

    /// The same with a small window for the server's data.
    pub async fn narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("descriptors");
        socket.set_recv_buffer_size(2_048).expect("a size");
        Self(socket.connect(address).await.expect("connects")).greet(&[]).await
    }

    /// Sends bytes. Whether the server still took them.
    pub async fn bytes(&mut self, bytes: &[u8]) -> bool {
        timeout(PATIENCE, self.0.write_all(bytes)).await.expect("in time").is_ok()
    }

    /// Sends a frame. Whether the server still took it.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.bytes(&frame(kind, flags, stream, payload)).await
    }

    /// Begins a call, and ends its request.
    pub async fn call(&mut self, stream: u32, path: &str, body: &[u8], timeout: &str) -> bool {
        self.send(HEADERS, END_HEADERS, stream, &block(path, timeout)).await
            && self.send(DATA, END_STREAM, stream, body).await
    }

    /// The next frame; None at the end of the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        timeout(PATIENCE, self.0.read_exact(&mut head)).await.expect("in time").ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)];
        timeout(PATIENCE, self.0.read_exact(&mut payload)).await.expect("in time").ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The first frame that is meant.
    pub async fn until(&mut self, meant: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.next().await.expect("the connection goes on");
            if meant(&frame) {
                return frame;
            }
        }
    }

    /// All frames that still come.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}
