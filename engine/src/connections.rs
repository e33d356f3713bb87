//! The open connections of a worker: what each holds, and how it is woken.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::bridge::Cause;
use crate::grpc::payload::Waiting;
use crate::peer::{Owner, Peer};
use crate::scheduler::Slice;
use crate::shared::Shared;

/// A connection that has waited longer for the thread was served late.
pub(crate) const LATE: Duration = Duration::from_secs(1);

/// One open connection, as its calls and its worker see it.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    number: u64,
    pub(crate) peer: Arc<Peer>,
    /// The generation of authorities under which its client's certificate was checked last.
    pub(crate) authorities_generation: Cell<u64>,
    /// Bytes that wait for its reader.
    pub(crate) waiting: Rc<Waiting>,
    /// Whether it must close because it holds most of what waits for readers.
    pub(crate) must_close: Cell<bool>,
    /// Whether this server ends it.
    pub(crate) closed_here: Cell<bool>,
    /// When this server last served it late.
    late_at: Cell<Option<Instant>>,
    /// How long after that its end says nothing about its client, whose pings were unanswered.
    doubtful: Duration,
    /// Whether its client's certificate is no longer accepted, so that it has no calls.
    pub(crate) is_refused: Cell<bool>,
    /// Calls that the client cancelled before they were answered, and that we reset, since the last keepalive.
    pub(crate) cancels: Cell<u32>,
    /// Known calls that wait for Python.
    pub(crate) pending_known: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionHandle {
    pub(crate) fn owner(&self) -> Owner {
        self.peer.account.owner
    }

    /// Why a call ends that its client or the end of the connection ends.
    pub(crate) fn cause_of_end(&self) -> Cause {
        if self.closed_here.get() {
            Cause::ClosedHere
        } else if self.late_at.get().is_some_and(|late_at| late_at.elapsed() < self.doubtful) {
            Cause::ServedLate
        } else {
            Cause::Client
        }
    }

    /// Ready once a slice of the connection has begun. Notes whether the connection is served late.
    pub(crate) fn poll_slice(&self, cx: &Context<'_>, slice: &mut Slice, timer: &Sleep) -> Poll<()> {
        self.waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        ready!(slice.poll(cx));
        if slice.waited > LATE || timer.is_elapsed() && slice.began > timer.deadline() + LATE {
            self.late_at.set(Some(slice.began));
        }
        Poll::Ready(())
    }

    /// Counts a call that its client cancelled before it was answered.
    pub(crate) fn count_cancel(&self) {
        self.cancels.set(self.cancels.get() + 1);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.shared.counts.waiting.fetch_sub(self.reported.get(), Ordering::Relaxed);
    }
}

/// All open connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    shared: Arc<Shared>,
    handles: RefCell<HashMap<u64, Rc<ConnectionHandle>>>,
    next_number: Cell<u64>,
    /// Bytes that wait for the readers of each owner.
    addresses: RefCell<HashMap<Owner, Weak<Cell<usize>>>>,
    /// Bytes that wait for readers, of all connections.
    waiting: Rc<Cell<usize>>,
    /// How many of them the shared count has.
    reported: Cell<usize>,
}

impl Connections {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            handles: RefCell::default(),
            next_number: Cell::new(0),
            addresses: RefCell::default(),
            waiting: Rc::default(),
            reported: Cell::new(0),
        }
    }

    /// Adds the connection of a peer.
    pub(crate) fn add(&self, peer: Peer) -> Rc<ConnectionHandle> {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let handle = Rc::new(ConnectionHandle {
            number,
            authorities_generation: Cell::new(peer.authorities_generation),
            waiting: Waiting::of(self.address(peer.account.owner), &self.waiting),
            peer: Arc::new(peer),
            must_close: Cell::new(false),
            closed_here: Cell::new(false),
            late_at: Cell::new(None),
            doubtful: self.shared.limits.keepalive + self.shared.limits.keepalive_timeout,
            is_refused: Cell::new(false),
            cancels: Cell::new(0),
            pending_known: Cell::new(0),
            waker: RefCell::new(None),
        });
        self.handles.borrow_mut().insert(number, Rc::clone(&handle));
        handle
    }

    /// What waits for the readers of an owner.
    fn address(&self, owner: Owner) -> Rc<Cell<usize>> {
        let mut addresses = self.addresses.borrow_mut();
        if let Some(bytes) = addresses.get(&owner).and_then(Weak::upgrade) {
            return bytes;
        }
        if addresses.len() > 2 * self.handles.borrow().len() {
            addresses.retain(|_, bytes| bytes.strong_count() > 0);
        }
        let bytes = Rc::default();
        addresses.insert(owner, Rc::downgrade(&bytes));
        bytes
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&self, handle: &ConnectionHandle) {
        handle.waiting.set_unsent(0);
        self.handles.borrow_mut().remove(&handle.number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handles.borrow().is_empty()
    }

    pub(crate) fn wake_all(&self) {
        for handle in self.handles.borrow().values() {
            handle.wake();
        }
    }

    /// Keeps the bytes that wait for readers within their limits. Closes connections of this one's address if that holds
    /// more than its share. Closes connections of the address that holds most if all together hold too much.
    pub(crate) fn check_waiting(&self, of: &ConnectionHandle) {
        let most = self.shared.limits.max_waiting / self.shared.threads;
        let waiting = self.report();
        // An eighth of the limit more than necessary is closed, because each time all connections of an owner are looked at.
        let of_address = match of.owner() {
            Owner::Machine => most,
            Owner::Site(_) => self.shared.limits.of_address(most),
        };
        let mine = of.waiting.of_address.get();
        if mine > of_address {
            self.close_most(of.owner(), mine - of_address + of_address / 8);
        }
        if waiting > most {
            let addresses = self.addresses.borrow();
            let worst = addresses.iter().max_by_key(|(_, bytes)| bytes.upgrade().map_or(0, |bytes| bytes.get()));
            if let Some((owner, _)) = worst {
                self.close_most(*owner, waiting - most + most / 8);
            }
        }
    }

    /// Updates the count of all workers. Returns the bytes that wait for readers of this one.
    pub(crate) fn report(&self) -> usize {
        let waiting = self.waiting.get();
        let before = self.reported.replace(waiting);
        self.shared.counts.waiting.fetch_add(waiting.wrapping_sub(before), Ordering::Relaxed); // wraps to a subtraction
        waiting
    }

    /// Closes the connections of an owner that hold most, until they held so many bytes. These bytes count no more.
    fn close_most(&self, owner: Owner, mut bytes: usize) {
        let handles = self.handles.borrow();
        let mut of_owner: Vec<&Rc<ConnectionHandle>> =
            handles.values().filter(|handle| handle.owner() == owner && !handle.must_close.get()).collect();
        of_owner.sort_unstable_by_key(|handle| handle.waiting.bytes.get());
        while bytes > 0 {
            let Some(worst) = of_owner.pop().filter(|worst| worst.waiting.bytes.get() > 0) else { return };
            bytes = bytes.saturating_sub(worst.waiting.bytes.get());
            worst.waiting.write_off();
            worst.must_close.set(true);
            worst.closed_here.set(true);
            self.shared.counts.closed_for_waiting.fetch_add(1, Ordering::Relaxed);
            worst.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Door;
    use crate::limits::Limits;

    #[test]
    fn connections_that_hold_most_close_and_their_bytes_count_no_more() {
        let shared = Shared::of(Limits { max_waiting: 1_600, ..Limits::default() }, Vec::new());
        let connections = Connections::new(&shared);
        let add = |bytes| {
            let account = shared.ledger.account(Owner::Site(1));
            let handle = connections.add(Peer::of(([10, 0, 0, 1], 1).into(), account, Door::Grpc));
            handle.waiting.set_unsent(bytes);
            handle
        };
        let all: Vec<_> = (1..=40).map(add).collect();
        connections.check_waiting(&all[0]);
        let closed = || all.iter().filter(|handle| handle.must_close.get()).count();
        assert_eq!((closed(), all[0].waiting.of_address.get()), (4, 820 - 40 - 39 - 38 - 37));
        connections.remove(&all[39]);
        connections.check_waiting(&all[0]);
        assert_eq!((closed(), connections.waiting.get()), (4, 666));
    }
}
