//! Known calls that wait for Python, for one iteration of its event loop. They need no task.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use crate::bridge::{CallId, CallInfo, Command};
use crate::call::OpenCall;
use crate::call::task::CallTask;
use crate::connections::ConnectionHandle;
use crate::grpc::status::Status;
use crate::ledger::Hold;
use crate::worker::Recipient;

/// Most of one connection. A further one gets a task, which notices at once when the client cancels it.
const MAX_PENDING: u32 = 64;

/// A known call that waits for Python.
pub(crate) struct PendingKnownCall(RefCell<Option<(OpenCall, Arc<CallInfo>, Hold)>>);

impl PendingKnownCall {
    /// Whether another call of a connection may wait here.
    pub(crate) fn has_room(connection: &ConnectionHandle) -> bool {
        connection.pending_known.get() < MAX_PENDING
    }

    /// Has a call wait for its command.
    pub(crate) fn wait(call: OpenCall, info: Arc<CallInfo>, place: Hold) {
        let pending = &call.connection.pending_known;
        pending.set(pending.get() + 1);
        let (worker, id) = (Rc::clone(&call.worker), info.id);
        worker.add_call(id, Rc::new(Self(RefCell::new(Some((call, info, place))))));
    }
}

impl Recipient for PendingKnownCall {
    /// Answers the call, or gives it a task if the command is another one.
    fn receive(self: Rc<Self>, id: CallId, command: Command) {
        let Some((call, info, place)) = self.0.take() else { return };
        let pending = &call.connection.pending_known;
        pending.set(pending.get() - 1);
        call.worker.remove_call(id);
        match command {
            Command::Answer(message) => answer(call, message),
            command => CallTask::spawn(call, info, place, None).receive(id, command),
        }
    }
}

/// Answers a call, unless its client has left or its deadline has passed.
fn answer(mut call: OpenCall, message: Bytes) {
    let gone = call.responder.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
    if gone {
        call.connection.count_cancel();
    } else if call.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        call.responder.refuse(&Status::deadline_exceeded());
    } else if call.responder.answer(Bytes::new(), message).is_ok() {
        return;
    }
    call.worker.shared.counts.cancelled_calls.fetch_add(1, Ordering::Relaxed);
}
