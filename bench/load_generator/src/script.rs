//! Calls that were encoded beforehand. `bench/peers/generator.py` writes the file and tells its layout.

use std::io;
use std::path::Path;

use bytes::{Buf, Bytes};

const MAGIC: &[u8] = b"NSLOAD2\n";

/// One call.
#[derive(Clone)]
pub struct Call {
    /// Index into `Script::kinds`.
    pub kind: usize,
    /// The whole gRPC message with its prefix, or the whole remoting frame.
    pub data: Bytes,
    /// Where the ten digits of a remoting frame's `opaque` begin.
    pub opaque_at: usize,
}

/// All calls of a group.
pub struct Script {
    /// The path of a gRPC call, or the name of a remoting request.
    pub kinds: Vec<String>,
    calls: Vec<Call>,
    /// Indexes into `calls`.
    order: Vec<u32>,
}

impl Script {
    /// Reads a file; its bytes stay in memory once.
    pub fn read(path: &Path) -> io::Result<Script> {
        let mut data = Bytes::from(std::fs::read(path)?);
        if !data.starts_with(MAGIC) {
            return Err(io::Error::other(format!("{}: not a script", path.display())));
        }
        data.advance(MAGIC.len());
        let kinds = (0..data.get_u32())
            .map(|_| {
                let length = data.get_u32() as usize;
                String::from_utf8_lossy(&data.split_to(length)).into_owned()
            })
            .collect();
        let calls = (0..data.get_u32())
            .map(|_| {
                let (kind, opaque_at) = (data.get_u32() as usize, data.get_u32() as usize);
                let length = data.get_u32() as usize;
                Call {
                    kind,
                    data: data.split_to(length),
                    opaque_at,
                }
            })
            .collect();
        let order = (0..data.get_u32()).map(|_| data.get_u32()).collect();
        Ok(Script { kinds, calls, order })
    }

    /// The number of calls.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The call of a number from 0 on; after the last one comes the first one again.
    pub fn call(&self, number: usize) -> &Call {
        &self.calls[self.order[number % self.order.len()] as usize]
    }
}
