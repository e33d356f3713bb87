//! The requests of a connection that Python has, as Python's commands reach them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::bridge::{CallId, CallInfo, Command, Event};
use crate::connections::ConnectionHandle;
use crate::ledger::{Exceeding, Hold};
use crate::outgoing::Outgoing;
use crate::remoting::answer::FrameAnswer;
use crate::remoting::head::Head;
use crate::worker::{Recipient, Worker};

/// A request, and what it takes of the account.
type Request = (Arc<CallInfo>, (Hold, Option<Exceeding>));

/// A connection, for its requests: Python knows it as a broker's channel.
pub(crate) struct Link {
    /// The number by which Python knows it.
    pub(crate) id: CallId,
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    /// Answers that wait for the connection's next slice.
    pub(crate) answers: RefCell<Outgoing>,
    /// Requests that Python has not answered.
    requests: RefCell<HashMap<CallId, Request>>,
    /// Whether Python wants it to end.
    pub(crate) must_end: Cell<bool>,
    /// Whether Python knows it.
    is_known: Cell<bool>,
}

impl Link {
    pub(crate) fn new(worker: &Rc<Worker>, handle: &Rc<ConnectionHandle>) -> Rc<Self> {
        let link = Rc::new(Self {
            id: worker.call_id(),
            worker: Rc::clone(worker),
            handle: Rc::clone(handle),
            answers: RefCell::default(),
            requests: RefCell::default(),
            must_end: Cell::new(false),
            is_known: Cell::new(false),
        });
        worker.add_call(link.id, Rc::clone(&link) as Rc<dyn Recipient>);
        link
    }

    /// Requests that Python has not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.borrow().len()
    }

    pub(crate) fn ask(self: &Rc<Self>, info: CallInfo, takes: (Hold, Option<Exceeding>)) {
        let info = Arc::new(info);
        self.is_known.set(true);
        self.requests.borrow_mut().insert(info.id, (Arc::clone(&info), takes));
        self.worker.add_call(info.id, Rc::clone(self) as Rc<dyn Recipient>);
        self.worker.shared.counts.asked.fetch_add(1, Ordering::Relaxed);
        self.worker.shared.bridge.tell_call(info);
    }

    /// The connection has ended: Python is notified once, after the events of its requests.
    pub(crate) fn end(&self) {
        let (shared, cause) = (&self.worker.shared, self.handle.cause_of_end());
        self.worker.remove_call(self.id);
        for (id, (info, _)) in self.requests.take() {
            self.worker.remove_call(id);
            shared.counts.cancelled_calls.fetch_add(1, Ordering::Relaxed);
            shared.bridge.tell_cancelled(&info, cause);
        }
        if self.is_known.get() {
            shared.bridge.tell_of(self.handle.owner(), self.id, Event::Left(self.id, cause));
        }
    }
    /// Writes an answer. One that was given before, to a request that Python knows by a number, gets this one's.
    fn answer(&self, info: &CallInfo, answer: Bytes) {
        let answers = &mut *self.answers.borrow_mut();
        if info.known.is_none() {
            return answers.push(answer);
        }
        let opaque = info
            .frame
            .as_ref()
            .zip(info.request())
            .and_then(|(frame, request)| Some(Head::of(frame.encoding, request.get(..frame.header)?)?.opaque));
        if let (Some(opaque), Some(answer)) = (opaque, FrameAnswer::of(answer)) {
            answer.write(opaque, answers);
        }
    }
}

impl Recipient for Link {
    /// Answers a request, unless the answer is empty: its sender wants none, then. Any other command ends the connection.
    fn receive(self: Rc<Self>, id: CallId, command: Command) {
        let request = self.requests.borrow_mut().remove(&id);
        match (&request, command) {
            (Some(_), Command::Answer(answer)) if answer.is_empty() => {}
            (Some((info, _)), Command::Answer(answer)) => self.answer(info, answer),
            _ => self.must_end.set(true),
        }
        if request.is_some() {
            self.worker.remove_call(id);
        }
        self.handle.wake();
    }
}
