//! gRPC's messages on the wire: five bytes that declare, and as many bytes as they declared.
//!
//! What a peer declares takes no memory: the length is checked first, and the buffer grows with what has come.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use crate::grpc::status::{Code, Status, Statuses};
use crate::ledger::{Hold, Kind};

pub(crate) const PREFIX: usize = 5;

/// A message as it arrived.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Bytes,
    pub(crate) compressed: bool,
    /// Most bytes that it may have once it is decompressed.
    pub(crate) most_bytes: usize,
    /// Its bytes in the account of its sender.
    pub(crate) held: Hold,
}

/// Cuts a request into messages.
#[derive(Debug)]
pub(crate) struct Assembler {
    max_message: usize,
    statuses: Arc<Statuses>,
    held: BytesMut,
    /// The bytes that have come, in the account of their sender.
    counted: Hold,
}

impl Assembler {
    /// An assembler whose messages count in a hold of bytes.
    pub(crate) fn new(max_message: usize, statuses: &Arc<Statuses>, counted: Hold) -> Self {
        Self { max_message, statuses: Arc::clone(statuses), held: BytesMut::new(), counted }
    }

    /// The message of a body that is there whole, and holds nothing else. None: it takes an assembler to tell.
    pub(crate) fn whole(body: &Bytes, max_message: usize) -> Option<Bytes> {
        let (compressed, length) = declared(body, max_message).ok()??;
        (!compressed && body.len() == PREFIX + length).then(|| body.slice(PREFIX..))
    }

    /// Takes bytes that arrived. Refuses a message that is larger than it may be.
    pub(crate) fn feed(&mut self, chunk: &Bytes) -> Result<(), Status> {
        self.counted.grow(chunk.len()).map_err(|over| self.statuses.over(Kind::BytesIn, over))?;
        self.held.extend_from_slice(chunk);
        declared(&self.held, self.max_message).map(drop)
    }

    /// The next message, or None until it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Status> {
        let told = declared(&self.held, self.max_message)?;
        let Some((compressed, length)) = told.filter(|(_, length)| self.held.len() >= PREFIX + length) else {
            return Ok(None);
        };
        self.held.advance(PREFIX);
        let bytes = self.held.split_to(length).freeze();
        let held = self.counted.split(PREFIX + length);
        if self.held.len() <= length {
            self.held = BytesMut::from(&self.held[..]); // otherwise the rest would keep the message's memory after it
        }
        Ok(Some(Message { bytes, compressed, most_bytes: self.max_message, held }))
    }

    /// Whether the body ended in the middle of a message.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// The words of grpcio, so that a client need not know which engine it meets.
pub(crate) fn too_large(length: usize, most: usize) -> Status {
    Status::new(Code::ResourceExhausted, format!("Received message larger than max ({length} vs. {most})"))
}

/// Whether the message is compressed, and the length that the prefix declares. None until the prefix is complete.
fn declared(body: &[u8], most: usize) -> Result<Option<(bool, usize)>, Status> {
    let Some(&[flags, ref length @ ..]) = body.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if flags > 1 {
        return Err(Status::new(Code::Internal, "a message begins with flags that gRPC does not have"));
    }
    if length > most { Err(too_large(length, most)) } else { Ok(Some((flags == 1, length))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::limits::Limits;
    use crate::peer::Owner;
    use proptest::prelude::*;

    fn ledger(max_bytes_in: usize) -> Arc<Ledger> {
        Ledger::new(&Limits { max_bytes_in, ..Limits::default() })
    }

    fn assembler(max_message: usize, ledger: &Arc<Ledger>) -> Assembler {
        let counted = ledger.account(Owner::Machine).hold(Kind::BytesIn, 0).expect("nothing");
        Assembler::new(max_message, &Arc::new(Statuses::unknown()), counted)
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
        framed.extend_from_slice(message);
        framed
    }

    #[test]
    fn memory_is_taken_for_what_has_come_and_not_kept_for_what_has_gone() {
        let mut assembler = assembler(1 << 20, &ledger(1 << 20));
        assembler.feed(&framed(&vec![7; 10_000])[..PREFIX + 10].to_vec().into()).expect("begins");
        assert!(assembler.held.capacity() < 100);
        assembler.feed(&[vec![7; 9_990], framed(&[8; 10])].concat().into()).expect("fits");
        drop(assembler.next().expect("valid").expect("whole"));
        assert!(assembler.held.capacity() < 100);
        assert_eq!(assembler.next().expect("valid").expect("whole").bytes, [8; 10][..]);
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..10),
            cuts in proptest::collection::vec(1_usize..50, 1..100),
        ) {
            let wire: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            let all = ledger(1 << 20);
            let mut assembler = assembler(200, &all);
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
            prop_assert_eq!(all.held(Kind::BytesIn), 0);
        }
    }
}
