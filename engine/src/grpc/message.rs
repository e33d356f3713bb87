//! gRPC's messages on the wire: five bytes that declare, and as many bytes as they declared.
//!
//! What a peer declares takes no memory: the length is checked first, and the buffer grows with what has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes, BytesMut};

use crate::grpc::status::{Code, Status};

/// Length of the prefix of a message.
pub(crate) const PREFIX: usize = 5;

/// The most that is reserved for a message before any of it has come.
const FIRST_RESERVE: usize = 16 << 10;

/// Bytes of all messages that are still coming in, and how many there may be.
#[derive(Debug)]
pub(crate) struct Assembling {
    most: usize,
    held: AtomicUsize,
    /// What those are told that find no room.
    overloaded: Status,
}

impl Assembling {
    pub(crate) fn new(most: usize, overloaded: Status) -> Self {
        Self { most, held: AtomicUsize::new(0), overloaded }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Nothing so far, which is given back when it is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> HeldBytes {
        HeldBytes { all: Arc::clone(self), bytes: 0 }
    }
}

/// Bytes that somebody holds of those that there may be.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    all: Arc<Assembling>,
    bytes: usize,
}

impl HeldBytes {
    /// Holds more. Refused if all together would be too many.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let all = &self.all;
        let before = all.held.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > all.most {
            all.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(all.overloaded.clone());
        }
        self.bytes += bytes;
        Ok(())
    }

    fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.all.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) bytes: Bytes,
    pub(crate) compressed: bool,
}

/// Cuts a request into messages.
#[derive(Debug)]
pub(crate) struct Assembler {
    max_message: usize,
    held: BytesMut,
    counted: HeldBytes,
}

impl Assembler {
    pub(crate) fn new(max_message: usize, all: &Arc<Assembling>) -> Self {
        Self { max_message, held: BytesMut::new(), counted: all.hold() }
    }

    /// The message of a body that is there whole, and holds nothing else. None: it takes an assembler to tell.
    pub(crate) fn whole(body: &Bytes, max_message: usize) -> Option<Bytes> {
        let (compressed, length) = declared(body)?.ok()?;
        (!compressed && length <= max_message && body.len() == PREFIX + length).then(|| body.slice(PREFIX..))
    }

    /// Takes what has come. Refuses what is larger than it may be.
    pub(crate) fn feed(&mut self, chunk: &Bytes) -> Result<(), Status> {
        self.counted.grow(chunk.len())?;
        if self.held.is_empty() {
            self.held.reserve(chunk.len().max(FIRST_RESERVE.min(declared_or_zero(chunk) + PREFIX)));
        }
        self.held.extend_from_slice(chunk);
        self.check()
    }

    /// The next message; None until all of it is there.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Status> {
        let Some(told) = declared(&self.held) else { return Ok(None) };
        let (compressed, length) = told?;
        let length = self.checked(length)?;
        if self.held.len() < PREFIX + length {
            return Ok(None);
        }
        self.held.advance(PREFIX);
        let bytes = self.held.split_to(length).freeze();
        self.counted.shrink(PREFIX + length);
        if self.held.is_empty() {
            self.held = BytesMut::new(); // otherwise it would keep the message's memory after it
        }
        Ok(Some(Message { bytes, compressed }))
    }

    /// Whether the body ended in the middle of a message.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn check(&self) -> Result<(), Status> {
        declared(&self.held).map_or(Ok(()), |told| self.checked(told?.1).map(drop))
    }

    fn checked(&self, length: usize) -> Result<usize, Status> {
        if length <= self.max_message {
            return Ok(length);
        }
        Err(too_large(length, self.max_message))
    }
}

/// The words of grpcio, so that a client need not know which engine it meets.
pub(crate) fn too_large(length: usize, most: usize) -> Status {
    Status::new(Code::ResourceExhausted, format!("Received message larger than max ({length} vs. {most})"))
}

/// Whether the message is compressed, and the length that the prefix declares; None until all of it is there.
fn declared(body: &[u8]) -> Option<Result<(bool, usize), Status>> {
    let prefix: &[u8; PREFIX] = body.get(..PREFIX)?.try_into().ok()?;
    let [flags, length @ ..] = *prefix;
    Some(match flags {
        0 | 1 => Ok((flags == 1, u32::from_be_bytes(length) as usize)),
        _ => Err(Status::new(Code::Internal, "a message begins with flags that gRPC does not have")),
    })
}

fn declared_or_zero(body: &[u8]) -> usize {
    declared(body).and_then(Result::ok).map_or(0, |(_, length)| length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(most: usize) -> Arc<Assembling> {
        Arc::new(Assembling::new(most, Status::new(Code::ResourceExhausted, "too much")))
    }

    fn assembler(max_message: usize, most: usize) -> Assembler {
        Assembler::new(max_message, &all(most))
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
        framed.extend_from_slice(message);
        framed
    }

    #[test]
    fn a_message_may_have_so_many_bytes_and_not_one_more() {
        let mut at_limit = assembler(10, 100);
        at_limit.feed(&framed(&[7; 10]).into()).expect("within the limit");
        assert_eq!(at_limit.next().expect("within the limit").expect("whole").bytes, [7; 10][..]);
        let error = assembler(10, 100).feed(&framed(&[7; 11]).into()).expect_err("past the limit");
        assert_eq!(error.code, Code::ResourceExhausted);
        assert!(error.text.contains("11 vs. 10"));
    }

    #[test]
    fn four_gigabytes_that_are_only_declared_are_refused_and_take_nothing() {
        let error = assembler(10, 100).feed(&Bytes::from_static(&[0, 255, 255, 255, 255])).expect_err("too large");
        assert_eq!(error.code, Code::ResourceExhausted);
    }

    #[test]
    fn all_half_messages_together_are_bounded_and_given_back() {
        let all = all(20);
        let mut one = Assembler::new(100, &all);
        one.feed(&framed(&[1; 15]).slice_off(15)).expect("fits");
        let mut other = Assembler::new(100, &all);
        assert_eq!(other.feed(&Bytes::from(vec![0; 6])).expect_err("does not fit").code, Code::ResourceExhausted);
        drop(one);
        assert_eq!(all.held(), 0);
        other.feed(&Bytes::from(vec![0; 6])).expect("fits now");
    }

    #[test]
    fn compressed_messages_are_told_apart_and_unknown_flags_refused() {
        let mut compressed = assembler(10, 100);
        compressed.feed(&Bytes::from_static(&[1, 0, 0, 0, 1, 9])).expect("valid");
        assert!(compressed.next().expect("valid").expect("whole").compressed);
        let error = assembler(10, 100).feed(&Bytes::from_static(&[2, 0, 0, 0, 1, 9])).expect_err("refused");
        assert_eq!(error.code, Code::Internal);
    }

    trait SliceOff {
        fn slice_off(self, length: usize) -> Bytes;
    }

    impl SliceOff for Vec<u8> {
        fn slice_off(mut self, length: usize) -> Bytes {
            self.truncate(length);
            self.into()
        }
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..10),
            cuts in proptest::collection::vec(1_usize..50, 1..100),
        ) {
            let wire: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            let all = all(1 << 20);
            let mut assembler = Assembler::new(200, &all);
            let (mut at, mut out, mut cuts) = (0, Vec::new(), cuts.into_iter().cycle());
            while at < wire.len() {
                let end = wire.len().min(at + cuts.next().unwrap_or(1));
                assembler.feed(&Bytes::copy_from_slice(&wire[at..end])).expect("valid");
                at = end;
                while let Some(message) = assembler.next().expect("valid") {
                    out.push(message.bytes.to_vec());
                }
            }
            prop_assert_eq!(out, messages);
            prop_assert!(assembler.is_empty());
            prop_assert_eq!(all.held(), 0);
        }

        #[test]
        fn any_bytes_are_taken_or_refused_and_never_held_beyond_the_bound(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..20),
        ) {
            let all = all(300);
            let mut assembler = Assembler::new(200, &all);
            for chunk in chunks {
                if assembler.feed(&Bytes::from(chunk)).is_err() {
                    break;
                }
                while let Ok(Some(message)) = assembler.next() {
                    prop_assert!(message.bytes.len() <= 200);
                }
                prop_assert!(all.held() <= 300);
            }
            drop(assembler);
            prop_assert_eq!(all.held(), 0);
        }
    }
}
