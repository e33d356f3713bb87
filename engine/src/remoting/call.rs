//! A request that Python has, and its connection, as Python's commands reach them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::bridge::{CallId, CallInfo, Command};
use crate::connections::ConnectionHandle;
use crate::ledger::{Exceeding, Hold};
use crate::outgoing::Outgoing;
use crate::remoting::answer::FrameAnswer;
use crate::remoting::head::Head;
use crate::worker::{Recipient, Worker};

/// A connection, for its requests: Python knows it as a broker's channel.
pub(crate) struct Link {
    /// The number by which Python knows it.
    pub(crate) id: CallId,
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    /// Answers that wait for the connection's next slice.
    pub(crate) answers: RefCell<Outgoing>,
    requests: RefCell<HashMap<CallId, Arc<CallInfo>>>,
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
        self.requests.borrow_mut().insert(info.id, Arc::clone(&info));
        let call = FrameCall { link: Rc::clone(self), info: Arc::clone(&info), _takes: takes };
        self.worker.add_call(info.id, Rc::new(call));
        self.worker.shared.counts.asked.fetch_add(1, Ordering::Relaxed);
        self.worker.shared.bridge.tell_call(info);
    }

    /// The connection has ended: Python is notified once, after the events of its requests.
    pub(crate) fn end(&self) {
        let (shared, cause) = (&self.worker.shared, self.handle.cause_of_end());
        self.worker.remove_call(self.id);
        for (id, info) in self.requests.take() {
            self.worker.remove_call(id);
            shared.counts.cancelled_calls.fetch_add(1, Ordering::Relaxed);
            shared.bridge.tell_cancelled(&info, cause);
        }
        if self.is_known.get() {
            shared.bridge.tell_left(self.handle.owner, self.id, cause);
        }
    }
}

impl Recipient for Link {
    fn receive(self: Rc<Self>, _command: Command) {
        self.must_end.set(true); // nothing else is wanted of a connection
        self.handle.wake();
    }
}

/// A request that Python has.
struct FrameCall {
    link: Rc<Link>,
    info: Arc<CallInfo>,
    _takes: (Hold, Option<Exceeding>),
}

impl FrameCall {
    /// Writes an answer. One that was given before, to a request that Python knows by a number, gets this one's.
    fn answer(&self, answer: Bytes) {
        let answers = &mut *self.link.answers.borrow_mut();
        if self.info.known.is_none() {
            return answers.push(answer);
        }
        let opaque = self
            .info
            .frame
            .as_ref()
            .zip(self.info.request())
            .and_then(|(frame, request)| Some(Head::of(frame.encoding, request.get(..frame.header)?)?.opaque));
        if let (Some(opaque), Some(answer)) = (opaque, FrameAnswer::of(answer)) {
            answer.write(opaque, answers);
        }
    }
}

impl Recipient for FrameCall {
    /// Answers the request, unless the answer is empty: its sender wants none, then.
    fn receive(self: Rc<Self>, command: Command) {
        self.link.worker.remove_call(self.info.id);
        self.link.requests.borrow_mut().remove(&self.info.id);
        match command {
            Command::Answer(answer) if answer.is_empty() => {}
            Command::Answer(answer) => self.answer(answer),
            _ => self.link.must_end.set(true), // Python failed to say anything about it
        }
        self.link.handle.wake();
    }
}
