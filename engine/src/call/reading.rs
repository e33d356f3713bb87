//! The reading side of a request: its messages, whole and decompressed.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use tokio::time::{Sleep, sleep};

use crate::bridge::HeldMessage;
use crate::call::request::give_window_back;
use crate::grpc::inflate::{Encoding, unpack};
use crate::grpc::message::Assembler;
use crate::grpc::status::{Code, Status};
use crate::ledger::Hold;
use crate::worker::Worker;

/// A message that is decompressed on the worker of its call.
type Unpacked = Pin<Box<dyn Future<Output = Result<(Bytes, Hold), Status>>>>;

/// The reading side of a request.
pub(crate) struct Reading {
    /// None once its end has arrived.
    body: Option<RecvStream>,
    assembler: Assembler,
    /// Bytes that arrived and that the client's window still lacks: nobody has asked for them.
    unreleased: usize,
    /// Whether a message is wanted.
    pub(crate) wanted: bool,
    /// Decompresses the message that is wanted.
    unpacking: Option<Unpacked>,
    /// When the message that has begun must be whole.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Reading {
    pub(crate) fn new(body: RecvStream, assembler: Assembler) -> Self {
        Self { body: Some(body), assembler, unreleased: 0, wanted: false, unpacking: None, patience: None }
    }

    /// Reads a request of one message, whose first bytes have come already. Fails as `poll` does.
    pub(crate) async fn only_message(
        &mut self,
        first: Bytes,
        worker: &Worker,
        headers: &HeaderMap,
    ) -> Result<HeldMessage, Option<Status>> {
        self.take(&first)?;
        drop(first); // or it would keep the memory of a read, which nothing counts
        self.wanted = true;
        let mut message = None;
        while let Some(next) = poll_fn(|cx| self.poll(cx, worker, headers)).await? {
            if message.replace(next).is_some() {
                return Err(Status::new(Code::Internal, "the request holds more than one message").into());
            }
        }
        message.filter(|_| !self.ended_within()).ok_or_else(|| Some(Status::no_whole_message()))
    }

    /// Whether the request has ended in the middle of a message.
    pub(crate) fn ended_within(&self) -> bool {
        self.body.is_none() && !self.assembler.is_empty()
    }

    /// The message that is wanted, or None at the end of the request. Fails with the status that the call ends with, or with
    /// None if the stream has ended.
    pub(crate) fn poll(
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
                    let slice = worker.unpacking.of(message.held.account.owner);
                    let statuses = Arc::clone(&worker.shared.statuses);
                    self.unpacking = Some(Box::pin(unpack(slice, statuses, message, Encoding::of(headers)?)));
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
            (None, None) => return Poll::Ready(Ok(None)),
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
        Poll::Ready(Ok(Some(HeldMessage { bytes, held })))
    }

    /// Takes the bytes that arrived from HTTP/2, where nothing counts them, whether or not a message is wanted.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<(), Option<Status>> {
        while let Some(body) = &mut self.body {
            match body.poll_data(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(bytes))) => self.take(&bytes)?,
                Poll::Ready(Some(Err(_))) => return Err(None),
                Poll::Ready(None) => {
                    give_window_back(body, std::mem::take(&mut self.unreleased));
                    self.body = None; // and the trailers with it
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &Bytes) -> Result<(), Status> {
        self.unreleased += bytes.len();
        self.assembler.feed(bytes)
    }
}
