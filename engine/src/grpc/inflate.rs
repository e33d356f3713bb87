//! Compressed messages, decompressed in steps that are bounded in what they read and in what they write.
//!
//! Between two steps the worker serves others, and the call's deadline and its client's reset apply.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status as Progress};
use http::HeaderMap;

use crate::grpc::message::{Message, too_large};
use crate::grpc::status::{Code, Status, Statuses};
use crate::ledger::{Hold, Kind};
use crate::scheduler::{Scheduler, Slice};

/// Compressed bytes that a step reads at most: blocks without content write nothing, and cost time all the same.
const MAX_READ: usize = 4 << 10;

/// Bytes that a step writes at most.
const MAX_WRITTEN: usize = 32 << 10;

/// Members that a gzip message may have. Compressors write one; each further one costs a header and a checksum.
const MAX_MEMBERS: usize = 16;

/// The base-2 logarithm of the window of gzip.
const WINDOW_BITS: u8 = 15;

/// How the messages of a request may be compressed. Answers are not: routes are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// The encoding that a request's headers name.
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

    fn decoder(self) -> Result<Decompress, Status> {
        match self {
            Self::Gzip => Ok(Decompress::new_gzip(WINDOW_BITS)),
            Self::Deflate => Ok(Decompress::new(true)),
            Self::Identity => {
                Err(Status::new(Code::Internal, "a message is compressed, and grpc-encoding does not say how"))
            }
        }
    }

    fn broken(self) -> Status {
        let name = if self == Self::Gzip { "gzip" } else { "deflate" };
        Status::new(Code::Internal, format!("a message cannot be decompressed as {name}"))
    }
}

/// Shares the decompressing of a worker, which has one message at a time, between owners. The cost is in bytes.
pub(crate) fn scheduler() -> Rc<Scheduler> {
    Scheduler::of_other(MAX_WRITTEN as u64)
}

/// Decompresses a message in slices of `scheduler`. Until then, compressed and decompressed bytes count in its hold, and then
/// the latter.
pub(crate) async fn unpack(
    mut slice: Slice,
    statuses: Arc<Statuses>,
    message: Message,
    encoding: Encoding,
) -> Result<(Bytes, Hold), Status> {
    let Message { bytes: packed, mut held, most_bytes, .. } = message;
    let compressed = held.split(usize::MAX);
    poll_fn(|cx| slice.poll(cx)).await;
    let mut decoder = encoding.decoder()?; // some 40 KB, so not before it is next
    let mut buffer = vec![0; MAX_WRITTEN];
    let (mut whole, mut at, mut members) = (Vec::new(), 0, 1);
    loop {
        let (read_before, written_before) = (decoder.total_in(), decoder.total_out());
        let piece = &packed[at..packed.len().min(at + MAX_READ)];
        let progress = decoder.decompress(piece, &mut buffer, FlushDecompress::None);
        let progress = progress.map_err(|_| encoding.broken())?;
        let read = usize::try_from(decoder.total_in() - read_before).unwrap_or(usize::MAX);
        let written = usize::try_from(decoder.total_out() - written_before).unwrap_or(usize::MAX);
        at += read;
        slice.charge((read * (MAX_WRITTEN / MAX_READ) + written) as u64);
        if whole.len() + written > most_bytes {
            return Err(too_large(most_bytes + 1, most_bytes));
        }
        held.grow(written).map_err(|over| statuses.over(Kind::BytesIn, over))?;
        whole.extend_from_slice(&buffer[..written]);
        if progress == Progress::StreamEnd {
            if at == packed.len() {
                drop(compressed);
                return Ok((whole.into(), held));
            }
            if encoding != Encoding::Gzip || members == MAX_MEMBERS {
                return Err(encoding.broken());
            }
            members += 1;
            decoder = encoding.decoder()?;
        } else if read == 0 && written == 0 {
            return Err(encoding.broken()); // the message ends before its content does
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::limits::Limits;
    use crate::peer::Owner;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::future::Future;
    use std::io::Write;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use tokio::task::LocalSet;

    const MOST: usize = 100_000;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    }

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    }

    fn message(bytes: Bytes, ledger: &Arc<Ledger>, owner: Owner) -> Message {
        let held = ledger.account(owner).hold(Kind::BytesIn, bytes.len()).expect("it fits");
        Message { bytes, compressed: true, most_bytes: MOST, held }
    }

    /// Decompresses. Returns the result, and in how many steps.
    fn unpack_in_steps(bytes: impl Into<Bytes>, encoding: Encoding) -> (Result<Bytes, Status>, usize) {
        let ledger = Ledger::new(&Limits { max_bytes_in: 8 << 20, ..Limits::default() });
        let message = message(bytes.into(), &ledger, Owner::Machine);
        let (slice, statuses) = (scheduler().of(Owner::Machine), Arc::new(Statuses::unknown()));
        let mut steps = 0;
        let unpacked = {
            let mut unpacked = pin!(unpack(slice, statuses, message, encoding));
            loop {
                steps += 1;
                let polled = unpacked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(unpacked) = polled {
                    break unpacked.map(|(bytes, held)| {
                        assert_eq!(ledger.held(Kind::BytesIn), bytes.len());
                        drop(held);
                        bytes
                    });
                }
            }
        };
        assert_eq!(ledger.held(Kind::BytesIn), 0, "given back");
        (unpacked, steps)
    }

    #[tokio::test]
    async fn a_message_waits_for_one_or_two_of_another_owner_and_not_for_all() {
        let ledger = Ledger::new(&Limits { max_bytes_in: 256 << 20, ..Limits::default() });
        let (scheduler, statuses) = (scheduler(), Arc::new(Statuses::unknown()));
        let bytes = Bytes::from(gzip(&vec![7; MOST]));
        let done = Rc::new(RefCell::new(Vec::new()));
        let all = LocalSet::new();
        for site in std::iter::repeat_n(1, 100).chain([2]) {
            let message = message(bytes.clone(), &ledger, Owner::Site(site));
            let (slice, statuses) = (scheduler.of(Owner::Site(site)), Arc::clone(&statuses));
            let done = Rc::clone(&done);
            all.spawn_local(async move {
                unpack(slice, statuses, message, Encoding::Gzip).await.expect("within the limit");
                done.borrow_mut().push(site);
            });
        }
        all.await;
        let before = done.borrow().iter().position(|site| *site == 2).expect("it was decompressed");
        assert!(before <= 2, "{before}");
    }

    #[test]
    fn bombs_and_one_byte_past_the_limit_are_refused_in_a_few_steps() {
        for (packed, code) in [
            (gzip(&vec![0; MOST + 1]), Code::ResourceExhausted),
            (gzip(&vec![0; 50 << 20]), Code::ResourceExhausted),
            (gzip(b"").repeat(200_000), Code::Internal),
        ] {
            let (result, steps) = unpack_in_steps(packed, Encoding::Gzip);
            assert_eq!(result.expect_err("too large").code, code);
            assert!(steps <= MAX_MEMBERS + 1, "{steps}");
        }
    }

    #[test]
    fn a_message_that_is_broken_or_cut_off_or_goes_on_after_its_end_is_refused() {
        let packed = gzip(&[7; 1_000]);
        let mut longer = deflate(&[7; 1_000]);
        longer.push(0);
        for (bytes, encoding) in [
            (packed[..packed.len() - 3].to_vec(), Encoding::Gzip),
            (b"no gzip".to_vec(), Encoding::Gzip),
            ([packed.clone(), b"no gzip".to_vec()].concat(), Encoding::Gzip),
            (Vec::new(), Encoding::Gzip),
            (deflate(&[7; 1_000])[..8].to_vec(), Encoding::Deflate),
            (longer, Encoding::Deflate),
            (packed, Encoding::Identity),
        ] {
            assert_eq!(unpack_in_steps(bytes, encoding).0.expect_err("broken").code, Code::Internal);
        }
    }

    #[test]
    fn a_message_that_decompresses_to_nothing_is_read_in_small_steps() {
        let empty_block = [0, 0, 0, 0xFF, 0xFF];
        let bytes = [&[0x78, 0x9c][..], &empty_block.repeat(800_000)].concat();
        let expected = bytes.len().div_ceil(MAX_READ);
        let (result, steps) = unpack_in_steps(bytes, Encoding::Deflate);
        assert_eq!(result.expect_err("it has no end").code, Code::Internal);
        assert!(steps >= expected, "{steps}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decompressed_or_refused_within_the_limit_and_in_few_steps(
            bytes in proptest::collection::vec(any::<u8>(), 0..3_000),
            flips in proptest::collection::vec(any::<u16>(), 0..4),
            copies in 1_usize..20,
        ) {
            let gzip = gzip(&bytes).repeat(copies);
            for (mut packed, encoding) in [(gzip, Encoding::Gzip), (deflate(&bytes), Encoding::Deflate)] {
                for flip in &flips {
                    let at = usize::from(*flip) % (8 * packed.len());
                    packed[at / 8] ^= 1 << (at % 8);
                }
                let most_steps = packed.len() / MAX_READ + MOST / MAX_WRITTEN + MAX_MEMBERS + 2;
                let intact = flips.is_empty() && (copies <= MAX_MEMBERS || encoding == Encoding::Deflate);
                let (unpacked, steps) = unpack_in_steps(packed, encoding);
                prop_assert!(steps <= most_steps, "{steps} steps");
                match unpacked {
                    Ok(unpacked) if flips.is_empty() => prop_assert_eq!(&unpacked[..bytes.len()], &bytes[..]),
                    Ok(unpacked) => prop_assert!(unpacked.len() <= MOST),
                    Err(_) => prop_assert!(!intact),
                }
            }
        }
    }
}
