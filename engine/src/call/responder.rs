//! The answering side of one stream of HTTP/2.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::SendStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

use crate::cache::{Answer, Hit};
use crate::grpc::payload::{Payload, Waiting};
use crate::grpc::status::{Status, head_with, trailers};

const ONLY_GRPC: &[u8] = b"this server speaks gRPC only\n";

/// The client, the connection, or this side has ended the stream.
#[derive(Debug)]
pub(crate) struct Gone;

enum Side {
    /// Nothing has been sent.
    Fresh(SendResponse<Payload>),
    /// The head has.
    Begun(SendStream<Payload>),
    /// Everything has.
    Ended,
}

/// Sends what a call is answered with.
pub(crate) struct Responder {
    side: Side,
    waiting: Rc<Waiting>,
    /// The part of the last message that the client has no capacity for yet.
    unsent: Option<Payload>,
}

impl Responder {
    pub(crate) fn new(respond: SendResponse<Payload>, waiting: &Rc<Waiting>) -> Self {
        Self { side: Side::Fresh(respond), waiting: Rc::clone(waiting), unsent: None }
    }

    /// Ready when the client has reset the stream, or its connection has ended.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.side {
            Side::Fresh(respond) => respond.poll_reset(cx).map(drop),
            Side::Begun(stream) => stream.poll_reset(cx).map(drop),
            Side::Ended => Poll::Pending,
        }
    }

    /// Answers with one message, and ends well. HTTP/2 holds what the client does not take yet.
    pub(crate) fn answer(&mut self, header: Bytes, tail: Bytes) -> Result<(), Gone> {
        self.begin()?;
        let payload = Payload::framed(header, tail, 1, &self.waiting);
        let Side::Begun(stream) = &mut self.side else { return Err(Gone) };
        stream.send_data(payload, false).map_err(|_| Gone)?;
        self.end(trailers(0, ""))
    }

    /// Answers with what the cache has.
    pub(crate) fn answer_hit(&mut self, hit: Hit) -> Result<(), Gone> {
        match hit.answer {
            Answer::Message(tail) => self.answer(hit.header, tail),
            Answer::Absence(trailers) => self.end((*trailers).clone()),
            Answer::Frame(_) => Err(Gone), // of a method of the other protocol
        }
    }

    /// Ends with a status of the engine's own.
    pub(crate) fn refuse(&mut self, status: &Status) {
        let _ = self.end(status.trailers()); // fails only if the client has left
    }

    /// Answers a request that is not gRPC.
    pub(crate) fn refuse_http(&mut self, status: http::StatusCode) {
        let Side::Fresh(mut respond) = std::mem::replace(&mut self.side, Side::Ended) else { return };
        let mut response = http::Response::new(());
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        if let Ok(mut stream) = respond.send_response(response, false) {
            let _ = stream.send_data(Payload::plain(Bytes::from_static(ONLY_GRPC), &self.waiting), true);
        } // both fail only if the client has left
    }

    /// Takes the next message of a stream, which so many streams share. The one before must have left.
    pub(crate) fn start(&mut self, message: Bytes, streams: usize) -> Result<(), Gone> {
        self.begin()?;
        self.unsent = Some(Payload::framed(Bytes::new(), message, streams, &self.waiting));
        Ok(())
    }

    /// Whether a message is waiting for its reader.
    pub(crate) fn is_sending(&self) -> bool {
        self.unsent.is_some()
    }

    /// Ready when the client has capacity for all of the message.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let Side::Begun(stream) = &mut self.side else { return Poll::Ready(Err(Gone)) };
        while let Some(payload) = &mut self.unsent {
            let left = payload.remaining();
            stream.reserve_capacity(left);
            let mut room = stream.capacity();
            while room == 0 {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(more)) => room = more,
                    Some(Err(_)) | None => return Poll::Ready(Err(Gone)),
                }
            }
            let part = payload.split_to(room.min(left));
            if room >= left {
                self.unsent = None;
            }
            if stream.send_data(part, false).is_err() {
                return Poll::Ready(Err(Gone));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends with trailers, also within a message: clients take the status and drop what they have of the message.
    pub(crate) fn end(&mut self, trailers: HeaderMap) -> Result<(), Gone> {
        self.unsent = None;
        match std::mem::replace(&mut self.side, Side::Ended) {
            Side::Fresh(mut respond) => {
                self.waiting.add_status();
                respond.send_response(head_with(trailers), true).map(drop).map_err(|_| Gone)
            }
            Side::Begun(mut stream) => {
                stream.reserve_capacity(0);
                stream.send_trailers(trailers).map_err(|_| Gone)
            }
            Side::Ended => Err(Gone),
        }
    }

    fn begin(&mut self) -> Result<(), Gone> {
        if let Side::Fresh(respond) = &mut self.side {
            let begun = respond.send_response(head_with(HeaderMap::with_capacity(1)), false).map_err(|_| Gone)?;
            self.side = Side::Begun(begun);
        }
        Ok(())
    }
}
