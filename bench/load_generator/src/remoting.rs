//! RocketMQ's remoting protocol: frames of a JSON header and a body. What counts is the response code.
//!
//! A frame has four bytes of length of the rest, one byte of header encoding (0 is JSON), three bytes of header length,
//! the header and the body. An answer has the `opaque` of its request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use memchr::memmem;
use slab::Slab;
use tokio::io::{split, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::sync::{oneshot, Notify};

use crate::outcome::{Ended, LOST};
use crate::script::Call;

/// The first opaque number. Opaque numbers have ten digits, so a frame is changed in place.
const FIRST_OPAQUE: usize = 1_000_000_000;
const HEADER_AT: usize = 8;
const READ_BYTES: usize = 1 << 16;

/// One connection.
pub struct RemotingConnection {
    /// Frames that are still to be written.
    outgoing: RefCell<BytesMut>,
    wanted: Notify,
    /// The waiting call of each opaque number.
    waiting: RefCell<Slab<oneshot::Sender<Ended>>>,
    lost: Cell<bool>,
}

impl RemotingConnection {
    pub fn open<T>(stream: T) -> Rc<RemotingConnection>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let connection = Rc::new(RemotingConnection {
            outgoing: RefCell::default(),
            wanted: Notify::new(),
            waiting: RefCell::default(),
            lost: Cell::new(false),
        });
        let (reader, writer) = split(stream);
        tokio::task::spawn_local(Rc::clone(&connection).read(reader));
        tokio::task::spawn_local(Rc::clone(&connection).write(writer));
        connection
    }

    pub async fn call(&self, call: &Call) -> Ended {
        if self.lost.get() {
            return Some(LOST.to_owned());
        }
        let (tell, told) = oneshot::channel();
        let slot = self.waiting.borrow_mut().insert(tell);
        {
            let mut outgoing = self.outgoing.borrow_mut();
            let start = outgoing.len() + call.opaque_at;
            outgoing.extend_from_slice(&call.data);
            let digits = (FIRST_OPAQUE + slot).to_string();
            outgoing[start..start + digits.len()].copy_from_slice(digits.as_bytes());
        }
        self.wanted.notify_one();
        told.await.unwrap_or_else(|_| Some(LOST.to_owned()))
    }

    async fn write<T: AsyncWrite>(self: Rc<Self>, mut writer: WriteHalf<T>) {
        loop {
            let frames = self.outgoing.borrow_mut().split();
            if frames.is_empty() {
                self.wanted.notified().await;
            } else if writer.write_all(&frames).await.is_err() {
                return self.lose();
            }
        }
    }

    async fn read(self: Rc<Self>, mut reader: impl AsyncRead + Unpin) {
        let mut data = BytesMut::new();
        loop {
            data.reserve(READ_BYTES);
            if !matches!(reader.read_buf(&mut data).await, Ok(1..)) {
                return self.lose();
            }
            while let Some(frame) = next_frame(&mut data) {
                self.answer(&frame);
            }
        }
    }

    fn answer(&self, frame: &[u8]) {
        let header = &frame[HEADER_AT..HEADER_AT + header_length(frame)];
        let Some(slot) = number(header, b"\"opaque\":").and_then(|opaque| opaque.checked_sub(FIRST_OPAQUE)) else {
            return;
        };
        let Some(tell) = self.waiting.borrow_mut().try_remove(slot) else {
            return;
        };
        let error = match number(header, b"\"code\":") {
            Some(0) => None,
            Some(code) => Some(format!("code {code}")),
            None => Some("no code".to_owned()),
        };
        // No call waits after the end of the run.
        let _ = tell.send(error);
    }

    fn lose(&self) {
        self.lost.set(true);
        self.waiting.borrow_mut().clear();
    }
}

/// Takes one whole frame off the data, if it is there.
fn next_frame(data: &mut BytesMut) -> Option<BytesMut> {
    let length = 4 + u32::from_be_bytes(data.get(..4)?.try_into().ok()?) as usize;
    if data.remaining() < length {
        data.reserve(length - data.remaining());
        return None;
    }
    Some(data.split_to(length))
}

/// Length of a frame's header.
fn header_length(frame: &[u8]) -> usize {
    u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize
}

/// The number after a key of a JSON header.
fn number(header: &[u8], key: &[u8]) -> Option<usize> {
    let start = memmem::find(header, key)? + key.len();
    let digits = header[start..].iter().take_while(|byte| byte.is_ascii_digit());
    let text: String = digits.map(|byte| *byte as char).collect();
    text.parse().ok()
}
