//! Calls that Python has: do what Python says, until they end in one way or another.
//!
//! Each has a task. Known calls wait for one iteration of Python's event loop, and need no task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::bridge::{CallId, CallInfo, Cause, Command, Event};
use crate::call::OpenCall;
use crate::call::reading::Reading;
use crate::call::responder::Gone;
use crate::connections::ConnectionHandle;
use crate::grpc::status::{Code, Status};
use crate::ledger::Hold;
use crate::worker::Recipient;

/// The commands for one call, until its task takes them.
#[derive(Debug, Default)]
struct Mailbox {
    commands: RefCell<VecDeque<Command>>,
    waker: RefCell<Option<Waker>>,
}

impl Recipient for Mailbox {
    fn receive(self: Rc<Self>, _id: CallId, command: Command) {
        self.commands.borrow_mut().push_back(command);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Mailbox {
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Command> {
        if let Some(command) = self.commands.borrow_mut().pop_front() {
            return Poll::Ready(command);
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The end that Python wants, which waits for the last message to leave.
struct Ending {
    trailers: HeaderMap,
    linger: Pin<Box<Sleep>>,
}

/// A call that Python has.
pub(crate) struct CallTask {
    call: OpenCall,
    info: Arc<CallInfo>,
    mailbox: Rc<Mailbox>,
    _place: Hold,
    reading: Option<Reading>,
    deadline: Option<Pin<Box<Sleep>>>,
    ending: Option<Ending>,
    /// Why it ends, unless Python ends it.
    cause: Option<Cause>,
}

/// The result of a step of the task.
enum Step {
    /// Something was done; there may be more to do.
    Again,
    /// The call has ended: as Python said, or for a cause that Python does not know yet.
    Ended(Option<Cause>),
}

impl CallTask {
    /// Starts the task. Returns what takes the call's commands.
    pub(crate) fn spawn(
        call: OpenCall,
        info: Arc<CallInfo>,
        place: Hold,
        reading: Option<Reading>,
    ) -> Rc<dyn Recipient> {
        let mailbox = Rc::new(Mailbox::default());
        let recipient: Rc<dyn Recipient> = Rc::clone(&mailbox) as Rc<dyn Recipient>;
        call.worker.add_call(info.id, Rc::clone(&recipient));
        let task = Self {
            deadline: call.deadline.map(|at| Box::pin(sleep_until(at))),
            reading,
            call,
            info,
            mailbox,
            _place: place,
            ending: None,
            cause: Some(Cause::ClosedHere), // if the thread ends
        };
        spawn_local(task.run());
        recipient
    }

    async fn run(mut self) {
        loop {
            if let Step::Ended(cause) = poll_fn(|cx| self.poll_step(cx)).await {
                self.cause = cause;
                return;
            }
        }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if self.call.responder.poll_gone(cx).is_ready() {
            self.call.connection.count_cancel();
            return Poll::Ready(self.gone());
        }
        if self.call.connection.is_refused.get() {
            let status = self.call.worker.shared.statuses.refused_certificate.clone();
            return Poll::Ready(self.refuse(&status)); // what such a client has told is not trusted either
        }
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            self.call.responder.refuse(&Status::deadline_exceeded());
            return Poll::Ready(Step::Ended(Some(Cause::Deadline)));
        }
        if self.call.responder.is_sending() {
            match self.call.responder.poll_sent(cx) {
                Poll::Ready(Ok(())) => {
                    self.tell(Event::Writable(self.info.id));
                    return Poll::Ready(Step::Again);
                }
                Poll::Ready(Err(Gone)) => return Poll::Ready(self.gone()),
                Poll::Pending => {}
            }
        }
        if let Some(ending) = &mut self.ending {
            if !self.call.responder.is_sending() || ending.linger.as_mut().poll(cx).is_ready() {
                let trailers = std::mem::take(&mut ending.trailers);
                let _ = self.call.responder.end(trailers); // fails only if the client has left
                return Poll::Ready(Step::Ended(None));
            }
        }
        if let Poll::Ready(command) = self.mailbox.poll_next(cx) {
            return Poll::Ready(self.obey(command).unwrap_or_else(|Gone| self.gone()));
        }
        self.poll_reading(cx)
    }

    fn obey(&mut self, command: Command) -> Result<Step, Gone> {
        let responder = &mut self.call.responder;
        match command {
            Command::Answer(message) => {
                responder.answer(Bytes::new(), message)?;
                return Ok(Step::Ended(None));
            }
            Command::Write(message, streams) => {
                responder.start(message, streams)?;
                self.call.worker.connections.check_waiting(&self.call.connection);
            }
            Command::Finish(trailers) => {
                if !responder.is_sending() {
                    let _ = responder.end(trailers); // fails only if the client has left
                    return Ok(Step::Ended(None));
                }
                let linger = Box::pin(sleep(self.call.worker.shared.limits.linger));
                self.ending = Some(Ending { trailers, linger });
            }
            Command::Close => {} // of a connection of the other protocol
            Command::Read => {
                if let Some(reading) = &mut self.reading {
                    reading.wanted = true;
                }
            }
        }
        Ok(Step::Again)
    }

    fn poll_reading(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(reading) = &mut self.reading else { return Poll::Pending };
        Poll::Ready(match ready!(reading.poll(cx, &self.call.worker, &self.info.headers)) {
            Ok(None) if reading.ended_within() => {
                self.refuse(&Status::new(Code::Internal, "the request ends within a message"))
            }
            Ok(message) => {
                reading.wanted = false;
                self.tell(Event::Message(self.info.id, message));
                Step::Again
            }
            Err(Some(status)) => self.refuse(&status),
            Err(None) => self.gone(),
        })
    }

    fn tell(&self, event: Event) {
        self.call.worker.shared.bridge.tell_of(self.call.connection.owner(), self.info.id, event);
    }

    /// Ends the call for what its client has done.
    fn refuse(&mut self, status: &Status) -> Step {
        self.call.responder.refuse(status);
        Step::Ended(Some(Cause::Client))
    }

    /// The client has left, of its own accord or not.
    fn gone(&self) -> Step {
        Step::Ended(Some(self.call.connection.cause_of_end()))
    }
}

impl Drop for CallTask {
    /// Whatever ended the task, the thread's own end included: the call is forgotten, and Python knows.
    fn drop(&mut self) {
        let worker = &self.call.worker;
        worker.remove_call(self.info.id);
        if let Some(cause) = self.cause {
            worker.shared.counts.cancelled_calls.fetch_add(1, Ordering::Relaxed);
            worker.shared.bridge.tell_cancelled(&self.info, cause);
        }
    }
}

/// Most known calls of one connection without a task. A further one gets a task, which notices at once when the client cancels it.
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
