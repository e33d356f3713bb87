//! Messages that were compressed, unpacked a piece at a time and no further than they may be.

use std::io::{Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use tokio::sync::Semaphore;

use crate::grpc::message::{Assembling, Message, too_large};
use crate::grpc::status::{Code, Status};

/// What is unpacked before it is somebody else's turn, bytes.
const PIECE: usize = 32 << 10;

/// How the messages of a request may be compressed. Answers are not: routes are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// What a request says.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        match headers.get("grpc-encoding").map(http::HeaderValue::as_bytes) {
            None | Some(b"identity") => Ok(Self::Identity),
            Some(b"gzip") => Ok(Self::Gzip),
            Some(b"deflate") => Ok(Self::Deflate),
            Some(other) => {
                let shown = String::from_utf8_lossy(&other[..other.len().min(32)]).into_owned();
                Err(Status::new(Code::Unimplemented, format!("no such compression here: {shown}")))
            }
        }
    }
}

/// A message as its sender had it. What it takes meanwhile counts as coming in.
///
/// One is unpacked at a time, by whoever has the turn: however many come, the others on this thread wait for one piece.
pub(crate) async fn unpacked(
    message: Message,
    encoding: Encoding,
    most: usize,
    all: &Arc<Assembling>,
    turn: &Semaphore,
) -> Result<Bytes, Status> {
    if !message.compressed {
        return Ok(message.bytes);
    }
    let packed = Cursor::new(message.bytes);
    let (mut reader, name): (Box<dyn Read>, _) = match encoding {
        Encoding::Gzip => (Box::new(MultiGzDecoder::new(packed)), "gzip"),
        Encoding::Deflate => (Box::new(ZlibDecoder::new(packed)), "deflate"),
        Encoding::Identity => {
            return Err(Status::new(Code::Internal, "a message is compressed, and grpc-encoding does not say how"));
        }
    };
    let Ok(_turn) = turn.acquire().await else { return Err(Status::new(Code::Unavailable, "the server ends")) };
    let mut held = all.hold();
    let mut whole = Vec::new();
    loop {
        let before = whole.len();
        let piece = (&mut reader).take(PIECE as u64).read_to_end(&mut whole);
        let more = piece.map_err(|_| Status::new(Code::Internal, format!("a message cannot be unpacked as {name}")))?;
        if whole.len() > most {
            return Err(too_large(most + 1, most));
        }
        held.grow(whole.len() - before)?;
        if more == 0 {
            return Ok(whole.into());
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::Write;

    const MOST: usize = 100_000;

    fn gzip(bytes: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory").into()
    }

    async fn unpack(bytes: Bytes, encoding: Encoding) -> Result<Bytes, Status> {
        let all = Arc::new(Assembling::new(1 << 20, Status::new(Code::ResourceExhausted, "too much")));
        let unpacked = unpacked(Message { bytes, compressed: true }, encoding, MOST, &all, &Semaphore::new(1)).await;
        assert_eq!(all.held(), 0, "given back");
        unpacked
    }

    #[tokio::test]
    async fn what_was_packed_comes_out_as_it_was() {
        let bytes = vec![7; MOST];
        assert_eq!(unpack(gzip(&bytes), Encoding::Gzip).await.expect("within the limit"), bytes);
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&bytes).expect("memory");
        let packed = encoder.finish().expect("memory");
        assert_eq!(unpack(packed.into(), Encoding::Deflate).await.expect("within the limit"), bytes);
    }

    #[tokio::test]
    async fn one_byte_past_the_limit_is_refused_and_a_bomb_is_not_unpacked() {
        for size in [MOST + 1, 50 << 20] {
            let error = unpack(gzip(&vec![0; size]), Encoding::Gzip).await.expect_err("too large");
            assert_eq!(error.code, Code::ResourceExhausted);
        }
    }

    #[tokio::test]
    async fn what_is_broken_or_cut_off_is_refused() {
        let packed = gzip(&[7; 1_000]);
        for bytes in [packed.slice(..packed.len() - 3), Bytes::from_static(b"no gzip")] {
            assert_eq!(unpack(bytes, Encoding::Gzip).await.expect_err("broken").code, Code::Internal);
        }
        assert_eq!(unpack(packed, Encoding::Identity).await.expect_err("unsaid").code, Code::Internal);
    }
}
