//! Calls that Python knows by their numbers, until it has answered them: one turn of its event loop. They need no task.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use crate::bridge::{CallId, CallInfo};
use crate::call::Begun;
use crate::grpc::status::{Code, Status};
use crate::room::Handle;
use crate::shared::Pending;

/// Most of one connection. Of those beyond it, as of any other call, a task sees at once when the client cancels them.
const MAX_PARKED: u32 = 64;

/// A call that waits.
pub(crate) struct Parked {
    pub(crate) call: Begun,
    pub(crate) info: Arc<CallInfo>,
    pub(crate) place: Pending,
}

impl Parked {
    /// Answers it, unless the client has gone or the time is over.
    pub(crate) fn answer(mut self, message: Bytes) {
        let gone = self.call.responder.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        if gone {
            self.call.handle.cancelled();
        } else if self.call.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let status = Status::new(Code::DeadlineExceeded, "Deadline Exceeded");
            let _ = self.call.responder.refuse(&status); // whoever has gone needs no answer
        } else if self.call.responder.answer(Bytes::new(), message).is_ok() {
            return;
        }
        self.call.room.shared.counts.cancelled_calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// The calls of one thread that wait.
#[derive(Default)]
pub(crate) struct Lot(RefCell<HashMap<CallId, Parked>>);

impl Lot {
    /// Whether another call of a connection may wait here.
    pub(crate) fn has_room_for(handle: &Handle) -> bool {
        handle.parked.get() < MAX_PARKED
    }

    /// Has a call wait.
    pub(crate) fn put(&self, parked: Parked) {
        let waiting = &parked.call.handle.parked;
        waiting.set(waiting.get() + 1);
        self.0.borrow_mut().insert(parked.info.id, parked);
    }

    /// A call whose turn has come.
    pub(crate) fn take(&self, id: CallId) -> Option<Parked> {
        let parked = self.0.borrow_mut().remove(&id)?;
        let waiting = &parked.call.handle.parked;
        waiting.set(waiting.get() - 1);
        Some(parked)
    }

    /// Drops all of them: the thread ends.
    pub(crate) fn clear(&self) {
        drop(self.0.take());
    }
}
