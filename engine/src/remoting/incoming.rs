//! Bytes of a peer until they are whole frames, in the account of its address.

use std::sync::Arc;

use bytes::Bytes;

use crate::call::CALL_BYTES;
use crate::ledger::{Account, Exceeding, Hold, Kind, Over};
use crate::remoting::frame::{Cut, Frame, MAX_FRAME, PREFIX, first_of};

/// Bytes that a connection may have without any in the account: requests of few topics continue while large ones wait.
const FREE: usize = 16 << 10;

/// Most bytes that are read at once. The account has them before.
pub(crate) const READ: usize = 64 << 10;

/// Fewest bytes for which the account is asked, so that reads are not small.
const FEWEST: usize = 4 << 10;

/// Bytes that each byte of a header takes while Python has its request: fields are objects then.
const HEADER_WEIGHT: usize = 8;

/// A frame from this size on is not copied.
const LARGE: usize = 32 << 10;

/// A request on its way to Python: its header and body, and what it takes of the account.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) request: Bytes,
    pub(crate) place: Hold,
    pub(crate) bytes: Hold,
    /// Where it takes more than the account has capacity for.
    pub(crate) exceeding: Option<Exceeding>,
}

/// The bytes that have arrived. No frame has been taken of them.
#[derive(Debug)]
pub(crate) struct Incoming {
    account: Arc<Account>,
    bytes: Vec<u8>,
    /// How many of them have been taken.
    taken: usize,
    held: Hold,
    /// How many bytes beyond `FREE` may be held.
    room: usize,
    /// The right to have more than is held: frames that have come in part must not wait for each other.
    exceeding: Option<Exceeding>,
}

impl Incoming {
    /// Without any bytes. Fails if the account is over its limits.
    pub(crate) fn new(account: &Arc<Account>) -> Result<Self, Over> {
        let held = account.hold(Kind::BytesIn, 0)?;
        Ok(Self { account: Arc::clone(account), bytes: Vec::new(), taken: 0, held, room: 0, exceeding: None })
    }

    pub(crate) fn left(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The first frame. Fails, in words, if the bytes are no frame.
    pub(crate) fn first(&self) -> Result<Cut, String> {
        first_of(self.left())
    }

    /// How many bytes may be read now. Fails if the account has no capacity.
    pub(crate) fn may_read(&mut self) -> Result<usize, Over> {
        let free = FREE + self.room - self.left().len();
        if free >= FEWEST {
            return Ok(free.min(READ));
        }
        if let Err(over) = self.held.grow(READ) {
            self.exceeding = self.exceeding.take().or_else(|| self.account.exceed());
            if self.exceeding.is_none() || self.room > MAX_FRAME + READ {
                return Err(over);
            }
        }
        self.room += READ;
        Ok(READ)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Passes over the first frame, which was answered.
    pub(crate) fn skip(&mut self, frame: &Frame) {
        self.taken += frame.end;
    }

    /// Takes the first frame as a request for Python. Fails, and changes nothing, if the account has no capacity for it.
    pub(crate) fn take(&mut self, frame: &Frame) -> Result<Taken, Over> {
        let weight = CALL_BYTES + HEADER_WEIGHT * (frame.header_end - PREFIX) + frame.end - frame.header_end;
        let own = self.room.min(frame.end).min(weight);
        let place = self.account.hold(Kind::Calls, 1)?;
        let mut bytes = match self.account.hold(Kind::BytesIn, weight - own) {
            Ok(bytes) => bytes,
            Err(_) if self.exceeding.is_some() => self.held.split(0),
            Err(over) => return Err(over),
        };
        bytes.merge(self.held.split(own));
        self.room -= own;
        let request = if frame.end >= LARGE && frame.end == self.left().len() {
            let whole = Bytes::from(std::mem::take(&mut self.bytes)).slice(self.taken..);
            self.taken = 0;
            whole.slice(PREFIX..)
        } else {
            let request = Bytes::copy_from_slice(&self.left()[PREFIX..frame.end]);
            self.skip(frame);
            request
        };
        Ok(Taken { request, place, bytes, exceeding: self.exceeding.take() })
    }

    /// Gives back what is no longer needed.
    pub(crate) fn fit(&mut self) {
        let left = self.left().len();
        if left == 0 {
            (self.bytes, self.taken) = (Vec::new(), 0); // an idle connection has no buffer
        }
        let needed = left.saturating_sub(FREE);
        if self.exceeding.is_none() && self.room > needed + READ || left == 0 {
            drop(self.held.split(self.room - needed));
            self.room = needed;
            self.exceeding = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::limits::Limits;
    use crate::peer::Owner;
    use crate::remoting::frame::{JSON, prefix};
    use proptest::prelude::*;

    fn frame(header: usize, body: usize) -> Vec<u8> {
        [&prefix(JSON, header, body)[..], &vec![1; header], &vec![2; body]].concat()
    }

    #[test]
    fn without_room_nothing_is_taken_and_nothing_changes() {
        let ledger = Ledger::new(&Limits { max_bytes_in: 1_000_000, max_calls: 2, ..Limits::default() });
        let mut incoming = Incoming::new(&ledger.account(Owner::Site(1))).expect("nothing");
        incoming.add(&[frame(10, 10), frame(10, 10)].concat());
        let Ok(Cut::Whole(first)) = incoming.first() else { panic!("whole") };
        let taken = incoming.take(&first).expect("a place");
        let held = ledger.held(Kind::BytesIn);
        assert_eq!(incoming.take(&first).expect_err("the address has one"), Over::OfAddress(1));
        assert_eq!((ledger.held(Kind::BytesIn), incoming.left().len()), (held, 28));
        drop(taken);
        incoming.take(&first).expect("given back");
    }

    #[test]
    fn of_frames_that_have_come_in_part_and_have_no_room_one_may_be_completed() {
        let ledger = Ledger::new(&Limits { max_bytes_in: 4 * READ, ..Limits::default() });
        let account = ledger.account(Owner::Machine);
        let whole = frame(10, 10 * READ);
        let mut all: Vec<_> = (0..3).map(|_| Incoming::new(&account).expect("nothing")).collect();
        let mut came = [0; 3];
        while all.iter_mut().zip(&mut came).any(|(incoming, came)| {
            let most = incoming.may_read().unwrap_or(0).min(whole.len() - *came);
            incoming.add(&whole[*came..*came + most]);
            *came += most;
            most > 0
        }) {}
        let (at, done) = came.iter().enumerate().max_by_key(|(_, came)| **came).expect("three");
        assert_eq!(*done, whole.len());
        let Ok(Cut::Whole(found)) = all[at].first() else { panic!("whole") };
        let taken = all[at].take(&found).expect("it exceeds");
        let mut others = (0..3).filter(|other| *other != at).collect::<Vec<_>>();
        others.sort_unstable();
        assert!(others.iter().all(|other| all[*other].may_read().is_err()));
        drop(taken);
        assert!(all[others[0]].may_read().is_ok());
        drop(all);
        assert_eq!(ledger.held(Kind::BytesIn), 0);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_came_in_and_no_declared_byte_is_held(
            sizes in proptest::collection::vec((1_usize..300, prop_oneof![0_usize..300, 50_000_usize..200_000], any::<bool>()), 1..8),
            step in 1_usize..READ,
        ) {
            let ledger = Ledger::new(&Limits::default());
            let mut incoming = Incoming::new(&ledger.account(Owner::Machine)).expect("nothing");
            let frames: Vec<_> = sizes.iter().map(|(header, body, _)| frame(*header, *body)).collect();
            let all = frames.concat();
            let (mut came, mut found) = (0, Vec::new());
            while found.len() < frames.len() {
                if let Ok(Cut::Whole(next)) = incoming.first() {
                    let expected = &frames[found.len()];
                    prop_assert_eq!(&incoming.left()[..next.end], &expected[..]);
                    if sizes[found.len()].2 {
                        let taken = incoming.take(&next).expect("room");
                        prop_assert_eq!(&taken.request[..], &expected[PREFIX..]);
                    } else {
                        incoming.skip(&next);
                    }
                    found.push(next);
                    incoming.fit();
                } else {
                    let most = incoming.may_read().expect("room").min(step).min(all.len() - came);
                    incoming.add(&all[came..came + most]);
                    came += most;
                    let (left, held) = (incoming.left().len(), ledger.held(Kind::BytesIn));
                    prop_assert!((left.saturating_sub(FREE)..=left + READ).contains(&held), "{held} of {left}");
                }
            }
            prop_assert_eq!((ledger.held(Kind::BytesIn), ledger.held(Kind::Calls)), (0, 0));
        }
    }
}
