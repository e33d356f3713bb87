//! The task of a call that Python has: does what Python says, until the call ends in one way or another.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use tokio::task::spawn_local;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::bridge::{CallId, CallInfo, Cause, Command, Event, HeldMessage};
use crate::call::OpenCall;
use crate::call::request::give_window_back;
use crate::call::responder::Gone;
use crate::grpc::inflate::Encoding;
use crate::grpc::message::Assembler;
use crate::grpc::status::{Code, Status};
use crate::ledger::Hold;
use crate::worker::{Recipient, Worker};

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

/// A message that is decompressed on the worker of its call.
type Unpacked = Pin<Box<dyn Future<Output = Result<(Bytes, Hold), Status>>>>;

/// The reading side of a request that streams.
struct Reading {
    /// None once its end has arrived.
    body: Option<RecvStream>,
    assembler: Assembler,
    /// Bytes that arrived and that the client's window still lacks: Python has not asked for them.
    unreleased: usize,
    /// Python waits for a message.
    wanted: bool,
    /// Decompresses the message that Python waits for.
    unpacking: Option<Unpacked>,
    /// When the message that has begun must be whole.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Reading {
    /// The message that Python waits for, or None at the end of the request. Fails with the status that the call ends with, or
    /// with None if the stream has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        worker: &Worker,
        headers: &HeaderMap,
    ) -> Poll<Result<Option<HeldMessage>, Option<Status>>> {
        self.take_in(cx)?;
        if !self.wanted {
            return Poll::Pending;
        }
        if self.unpacking.is_none() {
            match self.assembler.next()? {
                Some(message) if message.compressed => {
                    let unpacked = worker.unpacking.clone().unpack(message, Encoding::of(headers)?);
                    self.unpacking = Some(Box::pin(unpacked));
                }
                Some(message) => return self.whole(message.bytes, message.held),
                None => {}
            }
        }
        match (&mut self.unpacking, &mut self.body) {
            (Some(unpacking), _) => {
                if let Poll::Ready((bytes, held)) = unpacking.as_mut().poll(cx)? {
                    return self.whole(bytes, held);
                }
            }
            (None, None) if self.assembler.is_empty() => return Poll::Ready(Ok(None)),
            (None, None) => {
                return Poll::Ready(Err(Some(Status::new(Code::Internal, "the request ends within a message"))));
            }
            (None, Some(body)) => {
                give_window_back(body, std::mem::take(&mut self.unreleased));
                if self.assembler.is_empty() {
                    return Poll::Pending;
                }
            }
        }
        let body_timeout = worker.shared.limits.body_timeout;
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(body_timeout)));
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Err(Some(Status::deadline_exceeded())))
    }

    fn whole(&mut self, bytes: Bytes, held: Hold) -> Poll<Result<Option<HeldMessage>, Option<Status>>> {
        (self.patience, self.unpacking) = (None, None);
        Poll::Ready(Ok(Some(HeldMessage { bytes, _held: held })))
    }

    /// Takes the bytes that arrived from HTTP/2, where nothing counts them, whether or not Python waits for them.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<(), Option<Status>> {
        while let Some(body) = &mut self.body {
            match body.poll_data(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(bytes))) => {
                    self.unreleased += bytes.len();
                    self.assembler.feed(&bytes)?;
                }
                Poll::Ready(Some(Err(_))) => return Err(None),
                Poll::Ready(None) => {
                    give_window_back(body, std::mem::take(&mut self.unreleased));
                    self.body = None; // and the trailers with it
                }
            }
        }
        Ok(())
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
        body: Option<(RecvStream, Assembler)>,
    ) -> Rc<dyn Recipient> {
        let mailbox = Rc::new(Mailbox::default());
        let recipient: Rc<dyn Recipient> = Rc::clone(&mailbox) as Rc<dyn Recipient>;
        call.worker.add_call(info.id, Rc::clone(&recipient));
        let task = Self {
            deadline: call.deadline.map(|at| Box::pin(sleep_until(at))),
            reading: body.map(|(body, assembler)| Reading {
                body: Some(body),
                assembler,
                unreleased: 0,
                wanted: false,
                unpacking: None,
                patience: None,
            }),
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
        self.call.worker.shared.bridge.tell_of(self.call.connection.owner, event);
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
